// What the programs of this folder let a model do: two tools, in the folder they run in.
import { readFileSync, writeFileSync } from "node:fs";

const text = (description) => ({ type: "string", description });
const schema = (properties) => ({ type: "object", properties, required: Object.keys(properties) });

export const task = process.argv[2];
export const tools = {
  read_file: {
    description: "Reads a file.",
    schema: schema({ path: text("its name") }),
    run: ({ path }) => readFileSync(path, "utf8"),
  },
  write_file: {
    description: "Writes a file.",
    schema: schema({ path: text("its name"), text: text("all that it is to hold") }),
    run: ({ path, text }) => {
      writeFileSync(path, text);
      return "written";
    },
  },
};

// What an answer of a format is.
export const door = {
  type: "object",
  properties: { colour: { type: "string" }, painted: { type: "boolean" } },
  required: ["colour", "painted"],
  additionalProperties: false,
};

const before = readFileSync("colour.txt", "utf8");
export const reset = () => writeFileSync("colour.txt", before);

export const call = (name, input) => tools[name].run(input);
export const each = (make) => Object.entries(tools).map(([name, tool]) => make(name, tool));
export const print = (told) => console.log(JSON.stringify(told));
export const messages = (content) => [{ role: "user", content }];

// The name and status of the error that the promise is rejected with.
export async function refused(promise) {
  try {
    await promise;
  } catch (error) {
    return [error.constructor.name, error.status ?? error.status_code ?? error.statusCode];
  }
  return "not refused";
}
