// Frames of the socket: a uint32 in little-endian order, then so many bytes of JSON.

const HEAD = 4;

export function encodeFrame(message: object): Buffer {
  const body = Buffer.from(JSON.stringify(message), "utf8");
  const head = Buffer.alloc(HEAD);
  head.writeUInt32LE(body.length);
  return Buffer.concat([head, body]);
}

/** Makes objects of bytes that come in pieces of any size. */
export class FrameReader {
  #pieces: Buffer[] = [];
  #size = 0;

  /** The objects that are whole now. Throws SyntaxError where a frame is not JSON. */
  push(piece: Buffer): unknown[] {
    this.#pieces.push(piece);
    this.#size += piece.length;
    const found: unknown[] = [];
    for (let body = this.#take(); body; body = this.#take()) {
      found.push(JSON.parse(body.toString("utf8")));
    }
    return found;
  }

  #take(): Buffer | undefined {
    if (this.#size < HEAD) return undefined;
    // pieces are joined only once a frame is whole: a long one comes in many
    if (this.#pieces[0]!.length < HEAD) this.#join();
    const end = HEAD + this.#pieces[0]!.readUInt32LE();
    if (this.#size < end) return undefined;
    const all = this.#join();
    this.#pieces = [all.subarray(end)];
    this.#size -= end;
    return all.subarray(HEAD, end);
  }

  #join(): Buffer {
    const all = this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces);
    this.#pieces = [all];
    return all;
  }
}
