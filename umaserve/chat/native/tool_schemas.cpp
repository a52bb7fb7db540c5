// The converter (common/json-schema.cpp) refuses a whole schema for one part, and overlooks others.
// Here each schema is rebuilt with what it understands.

#include "tool_schemas.h"

#include "json-schema-to-grammar.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

using json = common_json;

static const int MOST_REPEATED = 1000;  // libllama refuses grammars with more than 2000
static const size_t MOST_NAMED = 64;    // parts of one tool's schema
static const size_t MOST_KEPT = 256;    // schemas whose result is remembered
static const double MOST_EXACT = 9007199254740991.0;

// Keywords that bind a value, and that the converter overlooks wherever they stand.
static const std::vector<std::string> OVERLOOKED = {
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "patternProperties", "propertyNames", "minProperties", "maxProperties", "contains",
    "minContains", "maxContains", "uniqueItems", "multipleOf"};
// Keywords that it overlooks beside `$ref`, `anyOf` or `oneOf`.
static const std::vector<std::string> BINDING = {
    "properties", "required", "enum", "const", "items", "prefixItems", "allOf", "pattern",
    "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum"};
// Keywords that say what a value is; others only refine it.
static const std::vector<std::string> STRUCTURE = {
    "$ref", "type", "properties", "enum", "const", "items", "prefixItems", "allOf", "anyOf", "oneOf"};
static const std::set<std::string> TYPES = {
    "object", "array", "string", "integer", "number", "boolean", "null"};

static bool has_any(const json & node, const std::vector<std::string> & keys) {
    for (const auto & key : keys) {
        if (node.contains(key)) {
            return true;
        }
    }
    return false;
}

static bool is_list(const json & node, const std::string & key) {
    return node.at(key).is_array() && !node.at(key).empty();
}

class schema_rebuilder {
  public:
    schema_rebuilder(const json & root) : m_root(root) {}

    std::vector<std::pair<std::string, std::string>> open;  // path, keyword

    json rebuilt() {
        json out = rebuilt(m_root, "#");
        bool is_object = out.contains("properties") || out.contains("$ref") ||
                         out.contains("anyOf") || out.contains("oneOf") || out.contains("allOf") ||
                         (out.contains("type") && out.at("type") == "object");
        if (!is_object && !(m_root.is_object() && m_root.empty())) {  // arguments are an object
            if (out.contains("type")) {
                name("#", "type");
            }
            out = json{{"type", "object"}};
        }
        json definitions = json::object();
        while (!m_waiting.empty()) {
            auto [key, pointer] = m_waiting.back();
            m_waiting.pop_back();
            definitions[key] = rebuilt(*resolved(pointer), pointer);
        }
        for (const auto & entry : m_keys) {
            std::set<std::string> passed;
            if (leads_to(definitions.at(entry.second), entry.second, definitions, passed)) {
                name(entry.first, "$ref");  // it is itself, or one of several that begin with it
                definitions[entry.second] = json::object();
            }
        }
        if (!definitions.empty()) {
            out["$defs"] = definitions;
        }
        return out;
    }

  private:
    const json & m_root;
    std::map<std::string, std::string> m_keys;  // of the new definitions, by pointer
    std::vector<std::pair<std::string, std::string>> m_waiting;

    void name(const std::string & path, const std::string & keyword) {
        if (open.size() < MOST_NAMED) {
            open.emplace_back(path, keyword);
        }
    }

    void leave_out(json & node, const std::string & path, const std::string & keyword) {
        if (node.contains(keyword)) {
            name(path, keyword);
            node.erase(keyword);
        }
    }

    json rebuilt(const json & node, const std::string & path) {
        if (node.is_boolean() && node.get<bool>()) {
            return json::object();
        }
        if (!node.is_object()) {
            name(path, node.is_boolean() ? "false" : "schema");
            return json::object();
        }
        if (node.contains("$ref")) {
            return reference(node, path);
        }
        json out = node;
        if (out.contains("patternProperties")) {
            out["additionalProperties"] = true;
        }
        for (const auto & key : OVERLOOKED) {
            leave_out(out, path, key);
        }
        for (const std::string key : {"oneOf", "anyOf"}) {
            if (out.contains(key) && (!is_list(out, key) || refines(out, key))) {
                leave_out(out, path, key);
            }
        }
        if (out.contains("oneOf")) {
            leave_out(out, path, "anyOf");
        }
        for (const std::string key : {"oneOf", "anyOf"}) {
            if (out.contains(key)) {
                for (const auto & each : BINDING) {
                    leave_out(out, path, each);
                }
                return json{{key, each_of(out.at(key), path + "/" + key)}};
            }
        }
        types(out, path);
        if (out.contains("enum") && !is_list(out, "enum")) {
            leave_out(out, path, "enum");
        }
        if (out.contains("enum") || out.contains("const")) {
            return out;
        }
        if (out.contains("allOf")) {
            json all = all_of(out, path);
            if (!all.is_null()) {
                return all;
            }
        }
        object_parts(out, path);
        array_parts(out, path);
        text_parts(out, path);
        number_parts(out, path);
        return out;
    }

    json each_of(const json & list, const std::string & path) {
        json out = json::array();
        size_t i = 0;
        for (const auto & each : list) {
            out.push_back(rebuilt(each, path + "/" + std::to_string(i++)));
        }
        return out;
    }

    // Whether the alternatives only refine what the node says itself.
    bool refines(const json & node, const std::string & key) {
        if (!has_any(node, {"properties", "type", "items", "enum", "const", "allOf"})) {
            return false;
        }
        for (const auto & each : node.at(key)) {
            if (each.is_object() && has_any(each, STRUCTURE)) {
                return false;
            }
        }
        return true;
    }

    void types(json & out, const std::string & path) {
        if (!out.contains("type")) {
            return;
        }
        const json type = out.at("type");
        json known = json::array();
        bool all_known = true;
        for (const auto & each : type) {
            if (each.is_string() && TYPES.count(each.get<std::string>())) {
                known.push_back(each);
            } else {
                all_known = false;
            }
        }
        if (!all_known || known.empty()) {
            name(path, "type");
        }
        if (known.empty()) {
            out.erase("type");
        } else if (type.is_array()) {
            out["type"] = known;
        }
    }

    // What `allOf` says; null where the converter cannot say it, or where it is left out.
    json all_of(json & out, const std::string & path) {
        const bool is_beside = out.contains("properties") || out.contains("items");
        if (is_list(out, "allOf") && !is_beside) {
            const json parts = out.at("allOf");
            if (parts.size() == 1) {
                return rebuilt(parts.at(size_t(0)), path + "/allOf/0");
            }
            bool are_objects = true, are_lists = true;
            for (const auto & each : parts) {
                const json * part = followed(each);
                are_objects = are_objects && part && part->contains("properties");
                are_lists = are_lists && part && part->contains("enum") && is_list(*part, "enum");
            }
            if (are_objects || are_lists) {
                return json{{"allOf", each_of(parts, path + "/allOf")}};
            }
        }
        leave_out(out, path, "allOf");
        return json(nullptr);
    }

    void object_parts(json & out, const std::string & path) {
        if (out.contains("properties") && !out.at("properties").is_object()) {
            leave_out(out, path, "properties");
        }
        if (out.contains("properties")) {
            json properties = json::object();
            for (const auto & entry : out.at("properties").items()) {
                if (entry.value() == false) {
                    continue;  // the converter allows no property that is not named
                }
                properties[entry.key()] =
                    rebuilt(entry.value(), path + "/properties/" + escaped(entry.key()));
            }
            out["properties"] = properties;
        }
        if (out.contains("additionalProperties") && !out.at("additionalProperties").is_boolean()) {
            if (out.at("additionalProperties").is_object()) {
                out["additionalProperties"] =
                    rebuilt(out.at("additionalProperties"), path + "/additionalProperties");
            } else {
                leave_out(out, path, "additionalProperties");
            }
        }
        if (out.contains("required") && out.at("required").is_array()) {
            for (const auto & each : out.at("required")) {
                if (!each.is_string() || !out.contains("properties") ||
                    !out.at("properties").contains(each.get<std::string>())) {
                    name(path, "required");
                    break;
                }
            }
        }
    }

    void array_parts(json & out, const std::string & path) {
        if (out.contains("prefixItems") && is_list(out, "prefixItems")) {
            if (out.contains("items") && out.at("items") != false) {
                name(path, "items");  // behind the prefix
            }
            out.erase("items");
        } else {
            leave_out(out, path, "prefixItems");
        }
        for (const std::string key : {"items", "prefixItems"}) {
            if (out.contains(key)) {
                out[key] = out.at(key).is_array() ? each_of(out.at(key), path + "/" + key)
                                                  : rebuilt(out.at(key), path + "/" + key);
            }
        }
        if (!has_any(out, {"items", "prefixItems"}) && out.contains("type") &&
            out.at("type") == "array") {
            out["items"] = json::object();  // templates look for it
        }
        counts(out, path, "minItems", "maxItems");
    }

    void text_parts(json & out, const std::string & path) {
        counts(out, path, "minLength", "maxLength");
        if (out.contains("format") && !out.at("format").is_string()) {
            leave_out(out, path, "format");
        }
        if (!out.contains("pattern")) {
            return;
        }
        if (!says_pattern(out.at("pattern"))) {
            leave_out(out, path, "pattern");
        } else {  // the converter heeds the pattern alone
            leave_out(out, path, "minLength");
            leave_out(out, path, "maxLength");
        }
    }

    void counts(json & out, const std::string & path, const char * least, const char * most) {
        for (const std::string key : {least, most}) {
            if (out.contains(key)) {
                const json & value = out.at(key);
                bool is_count = value.is_number() && value.get<double>() >= 0 &&
                                value.get<double>() <= MOST_REPEATED &&
                                value.get<double>() == static_cast<int>(value.get<double>());
                if (is_count) {
                    out[key] = static_cast<int>(value.get<double>());
                } else {
                    leave_out(out, path, key);
                }
            }
        }
        if (out.contains(least) && out.contains(most) &&
            out.at(least).get<int>() > out.at(most).get<int>()) {
            leave_out(out, path, least);
            leave_out(out, path, most);
        }
    }

    void number_parts(json & out, const std::string & path) {
        static const std::vector<std::string> BOUNDS = {"minimum", "maximum", "exclusiveMinimum",
                                                        "exclusiveMaximum"};
        const bool is_whole = out.contains("type") && out.at("type") == "integer";
        double low = -MOST_EXACT, high = MOST_EXACT;
        for (const auto & key : BOUNDS) {
            if (!out.contains(key)) {
                continue;
            }
            const double value = out.at(key).is_number() ? out.at(key).get<double>() : MOST_EXACT * 2;
            if (!is_whole || value > MOST_EXACT || value < -MOST_EXACT) {
                leave_out(out, path, key);
            } else if (key == "minimum" || key == "exclusiveMinimum") {
                low = std::max(low, value + (key != "minimum"));
            } else {
                high = std::min(high, value - (key != "maximum"));
            }
        }
        if (low > high) {
            for (const auto & key : BOUNDS) {
                leave_out(out, path, key);
            }
        }
    }

    // Whether a grammar says the pattern, and is one that libllama takes.
    static bool says_pattern(const json & pattern) {
        if (!pattern.is_string()) {
            return false;
        }
        std::string made;
        try {
            made = json_schema_to_grammar(json{{"type", "string"}, {"pattern", pattern}}, true);
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception &) {
            return false;
        }
        for (size_t at = made.find('{'); at != std::string::npos; at = made.find('{', at + 1)) {
            char * end = nullptr;
            long count = std::strtol(made.c_str() + at + 1, &end, 10);
            if (*end == ',') {
                count = std::max(count, std::strtol(end + 1, nullptr, 10));
            }
            if (count > MOST_REPEATED) {
                return false;
            }
        }
        return made.find("root ::= string\n") == std::string::npos;  // that is any text
    }

    // --- references -------------------------------------------------------------------------------

    static std::string escaped(const std::string & key) {
        std::string out;
        for (char c : key) {
            out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
        }
        return out;
    }

    static std::string unescaped(const std::string & part) {
        std::string out;
        for (size_t i = 0; i < part.size(); i++) {
            if (part[i] == '%' && i + 2 < part.size()) {
                out += static_cast<char>(std::strtol(part.substr(i + 1, 2).c_str(), nullptr, 16));
                i += 2;
            } else if (part[i] == '~' && i + 1 < part.size()) {
                out += part[++i] == '1' ? '/' : '~';
            } else {
                out += part[i];
            }
        }
        return out;
    }

    // What a reference into this schema points to; null where there is nothing.
    const json * resolved(const std::string & pointer) const {
        const json * node = &m_root;
        if (pointer == "#" || pointer == "#/") {
            return node;
        }
        if (pointer.compare(0, 2, "#/") != 0) {
            return nullptr;
        }
        for (size_t at = 2; at <= pointer.size();) {
            size_t end = std::min(pointer.find('/', at), pointer.size());
            std::string key = unescaped(pointer.substr(at, end - at));
            if (node->is_object() && node->contains(key)) {
                node = &node->at(key);
            } else if (node->is_array() && !key.empty() && key.size() < 6 &&
                       key.find_first_not_of("0123456789") == std::string::npos &&
                       std::stoul(key) < node->size()) {
                node = &node->at(std::stoul(key));
            } else {
                return nullptr;
            }
            at = end + 1;
        }
        return node;
    }

    // The schema that a reference leads to in the end; null for none.
    const json * followed(const json & node) const {
        const json * at = &node;
        for (int steps = 0; steps < 16 && at; steps++) {
            if (!at->is_object() || !at->contains("$ref")) {
                return at->is_object() ? at : nullptr;
            }
            const json & pointer = at->at("$ref");
            at = pointer.is_string() ? resolved(pointer.get<std::string>()) : nullptr;
        }
        return nullptr;
    }

    json reference(const json & node, const std::string & path) {
        const json & given = node.at("$ref");
        if (!given.is_string() || resolved(given.get<std::string>()) == nullptr) {
            name(path, "$ref");
            json rest = node;
            rest.erase("$ref");
            return rebuilt(rest, path);
        }
        for (const auto & key : BINDING) {
            if (node.contains(key)) {
                name(path, key);
            }
        }
        std::string pointer = given;
        auto known = m_keys.find(pointer);
        if (known == m_keys.end()) {
            std::string key = "part-" + std::to_string(m_keys.size());
            known = m_keys.emplace(pointer, key).first;
            m_waiting.emplace_back(key, pointer);
        }
        return json{{"$ref", "#/$defs/" + known->second}};
    }

    // Whether a definition begins with itself, which no grammar may.
    static bool leads_to(const json & node, const std::string & key, const json & definitions,
                         std::set<std::string> & passed) {
        if (node.contains("$ref")) {
            std::string next = node.at("$ref").get<std::string>().substr(8);
            return next == key || (passed.insert(next).second &&
                                   leads_to(definitions.at(next), key, definitions, passed));
        }
        for (const std::string list : {"anyOf", "oneOf", "allOf"}) {
            if (node.contains(list) && node.at(list).is_array()) {
                for (const auto & each : node.at(list)) {
                    if (leads_to(each, key, definitions, passed)) {
                        return true;
                    }
                }
            }
        }
        return false;
    }
};

struct rebuilt_schema {
    json schema, open;
};

static rebuilt_schema rebuilt(const json & schema) {
    schema_rebuilder builder(schema);
    json out = builder.rebuilt();
    try {
        json_schema_to_grammar(out, true);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {  // for a reason that is not known here
        out = json{{"type", "object"}};
        builder.open = {{"#", "schema"}};
    }
    json open = json::array();
    for (const auto & part : builder.open) {
        open.push_back({{"path", part.first}, {"keyword", part.second}});
    }
    return {out, open};
}

common_json convertible(const common_json & tools, common_json & open) {
    static std::unordered_map<std::string, rebuilt_schema> kept;
    json out = json::array();
    for (const auto & given : tools) {
        json tool = given;
        json & function = tool.at("function");
        if (function.contains("parameters")) {
            std::string text = function.at("parameters").dump();
            auto found = kept.find(text);
            if (found == kept.end()) {
                if (kept.size() >= MOST_KEPT) {
                    kept.clear();
                }
                found = kept.emplace(text, rebuilt(function.at("parameters"))).first;
            }
            function["parameters"] = found->second.schema;
            for (const auto & part : found->second.open) {
                json named = {{"tool", function.at("name")}};
                named["path"] = part.at("path");
                named["keyword"] = part.at("keyword");
                open.push_back(named);
            }
        }
        out.push_back(tool);
    }
    return out;
}
