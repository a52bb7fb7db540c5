// uma-chat: conversations to prompts and texts to messages, with llama.cpp's own chat layer.
//
// A chat template is a program by whoever made the model's file, and a parser reads whatever a
// model says. So both run here, in a process that the front bounds in time and ends. No model is
// loaded, and no library of llama.cpp is linked: what is needed of `common/` is compiled in.
//
// A question comes on standard input, its answer leaves on standard output, one after the other.
// Both are frames: a uint32 little-endian length, then that many bytes of JSON.
// umaserve/chat/questions.py has the questions and the answers.

#include "chat.h"
#include "log.h"
#include "tool_schemas.h"

#include <algorithm>
#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

using json = common_json;

static const size_t MEMORY_BYTES = 512u << 20;
static const size_t MAX_PROMPT_BYTES = 8u << 20;  // more fits no context
static const int QUESTION_CPU_S = 5;  // the front ends us earlier; this is for a front that is gone
static const size_t KEPT_PARSERS = 16;

// --- what llama.cpp's sources want of its libraries -----------------------------------------------
// All but the first are about a model, and none is ever given.

extern "C" {
void ggml_abort(const char * file, int line, const char * format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::fprintf(stderr, "%s:%d: ", file, line);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::abort();
}
const char * llama_model_chat_template(const llama_model *, const char *) { std::abort(); }
const llama_vocab * llama_model_get_vocab(const llama_model *) { std::abort(); }
llama_token llama_vocab_bos(const llama_vocab *) { std::abort(); }
llama_token llama_vocab_eos(const llama_vocab *) { std::abort(); }
bool llama_vocab_get_add_bos(const llama_vocab *) { std::abort(); }
bool llama_vocab_get_add_eos(const llama_vocab *) { std::abort(); }
int32_t llama_token_to_piece(const llama_vocab *, llama_token, char *, int32_t, int32_t, bool) {
    std::abort();
}
int32_t llama_chat_apply_template(
    const char *, const llama_chat_message *, size_t, bool, char *, int32_t) {
    std::abort();
}
}

// --- bounds ---------------------------------------------------------------------------------------

static void bound(int what, rlim_t soft, rlim_t hard) {
    rlimit limit = {soft, hard};
    setrlimit(static_cast<decltype(RLIMIT_CPU)>(what), &limit);  // macOS knows no RLIMIT_AS
}

static void bound_for_life() {
    bound(RLIMIT_AS, MEMORY_BYTES, MEMORY_BYTES);
    bound(RLIMIT_FSIZE, 0, 0);
    bound(RLIMIT_CORE, 0, 0);  // a core file would hold what people write
#ifdef __linux__
    prctl(PR_SET_DUMPABLE, 0);  // nor does one go to a program that collects them
#endif
}

// The next question may use so many seconds of a processor; then the system ends us.
static void bound_question() {
    rusage used = {};
    getrusage(RUSAGE_SELF, &used);
    bound(RLIMIT_CPU, used.ru_utime.tv_sec + used.ru_stime.tv_sec + 2 + QUESTION_CPU_S,
          RLIM_INFINITY);
}

// --- texts ----------------------------------------------------------------------------------------

// Valid UTF-8, with U+FFFD for what is none: a template may cut a character in two.
static std::string whole(const std::string & text) {
    return json::parse(json::make(text).dump_safe()).get<std::string>();
}

static size_t characters(const std::string & text, size_t begin, size_t end) {
    size_t count = 0;
    for (size_t i = begin; i < end; i++) {
        count += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    }
    return count;
}

struct range {
    size_t begin, end;
};

// Ranges of bytes, in order and apart, as [[first, end], ...] in characters.
static json in_characters(const std::string & text, const std::vector<range> & ranges) {
    json out = json::array();
    size_t at = 0, count = 0;
    for (const auto & r : ranges) {
        size_t begin = count + characters(text, at, r.begin);
        count = begin + characters(text, r.begin, r.end);
        at = r.end;
        out.push_back(json::array({begin, count}));
    }
    return out;
}

// The texts of the vocabulary's control tokens.
class control_texts {
  public:
    explicit control_texts(const std::vector<std::string> & texts) {
        for (const auto & text : texts) {
            if (!text.empty()) {
                m_by_size[text.size()].insert(text);
                m_first[static_cast<unsigned char>(text[0])] = true;
            }
        }
    }

    // How many bytes of `text` at `at` are the longest of them that stands there; 0 for none.
    size_t at(const std::string & text, size_t at) const {
        if (!m_first[static_cast<unsigned char>(text[at])]) {
            return 0;
        }
        for (auto it = m_by_size.rbegin(); it != m_by_size.rend(); ++it) {
            if (it->first <= text.size() - at && it->second.count(text.substr(at, it->first))) {
                return it->first;
            }
        }
        return 0;
    }

  private:
    std::map<size_t, std::unordered_set<std::string>> m_by_size;
    bool m_first[256] = {};
};

// --- what clients write is never markup -----------------------------------------------------------

// Stands for texts of control tokens while a template runs: a private-use character for each.
class placeholders {
  public:
    explicit placeholders(const control_texts & controls) : m_controls(controls) {}

    // Replaces these texts wherever they stand in strings of the request, also where several
    // strings make one of them together. Returns whether there was any.
    bool hide(std::vector<json *> values) {
        std::vector<std::string> strings, names;
        auto collect = [](std::vector<std::string> & into) {
            return [&into](const std::string & text) {
                into.push_back(text);
                return text;
            };
        };
        for (json * value : values) {
            each_string(*value, "", collect(strings), collect(names));
        }
        for (const auto & list : {strings, names}) {
            for (const auto & text : list) {
                note_used(text);
            }
        }
        bool any = replace(strings);
        for (auto & name : names) {
            std::vector<std::string> one = {name};
            any = replace(one) || any;
            name = one[0];
        }
        if (any) {
            size_t i = 0, n = 0;
            auto put_string = [&](const std::string &) { return strings[i++]; };
            auto put_name = [&](const std::string &) { return names[n++]; };
            for (json * value : values) {
                each_string(*value, "", put_string, put_name);
            }
        }
        return any;
    }

    // Puts the texts back; `ranges` are where they stand then.
    std::string restore(const std::string & text, std::vector<range> & ranges) const {
        std::string out;
        for (size_t i = 0; i < text.size();) {
            size_t size = 0;
            std::string original = original_at(text, i, size);
            if (size) {
                ranges.push_back({out.size(), out.size() + original.size()});
                out += original;
                i += size;
            } else {
                out += text[i++];
            }
        }
        return out;
    }

  private:
    const control_texts & m_controls;
    std::unordered_map<std::string, std::string> m_of, m_originals;
    std::set<std::string> m_used;
    uint32_t m_next = 0x100000;

    // Calls `change` with every string that a client wrote, in order, and `rename` with the names
    // of members, and puts what they return in their places.
    template <typename F, typename G>
    static void each_string(json & value, const std::string & key, F change, G rename) {
        if (value.is_string()) {
            if (key == "role" || key == "type") {
                return;
            }
            std::string text = value.get<std::string>();
            json inner = key == "arguments" ? json::parse_no_throw(text) : json();
            if (!inner.is_discarded() && (inner.is_object() || inner.is_array())) {
                std::string before = inner.dump();  // a template may be given what it says
                each_string(inner, "", change, rename);
                std::string after = inner.dump();
                if (after != before) {
                    value = after;
                }
                return;
            }
            value = change(text);
        } else if (value.is_array()) {
            for (size_t i = 0; i < value.size(); i++) {
                each_string(value.at(i), "", change, rename);
            }
        } else if (value.is_object()) {
            json changed = json::object();
            for (const auto & entry : value.items()) {
                json item = entry.value();
                std::string name = rename(entry.key());
                each_string(item, entry.key(), change, rename);
                changed[name] = item;
            }
            value = changed;
        }
    }

    // In strings that may stand one behind the other; returns whether there was any.
    bool replace(std::vector<std::string> & strings) {
        std::string all;
        for (const auto & text : strings) {
            all += text;
        }
        std::vector<range> found;
        for (size_t i = 0; i < all.size(); i++) {
            if (size_t size = m_controls.at(all, i)) {
                found.push_back({i, i + size});
                i += size - 1;
            }
        }
        size_t start = 0, next = 0;
        for (auto & text : strings) {
            size_t end = start + text.size(), at = start;
            std::string out;
            while (next < found.size() && found[next].begin < end) {
                size_t from = std::max(found[next].begin, start);
                size_t to = std::min(found[next].end, end);
                if (from < to) {
                    out += all.substr(at, from - at) + placeholder(all.substr(from, to - from));
                    at = to;
                }
                if (found[next].end > end) {
                    break;  // the next string has the rest of it
                }
                next++;
            }
            text = out + all.substr(at, end - at);
            start = end;
        }
        return !found.empty();
    }

    static bool is_private(const std::string & text, size_t at) {
        return text[at] == '\xf4' && at + 4 <= text.size() &&
               (static_cast<unsigned char>(text[at + 1]) & 0xF0) == 0x80;
    }

    void note_used(const std::string & all) {
        for (size_t i = 0; i < all.size(); i++) {
            if (is_private(all, i)) {
                m_used.insert(all.substr(i, 4));
            }
        }
    }

    static std::string encoded(uint32_t code) {
        return {'\xf4', static_cast<char>(0x80 | ((code >> 12) & 0x3F)),
                static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
                static_cast<char>(0x80 | (code & 0x3F))};
    }

    std::string placeholder(const std::string & original) {
        auto known = m_of.find(original);
        if (known != m_of.end()) {
            return known->second;
        }
        std::string made;
        do {
            if (m_next > 0x10FFFD) {
                throw std::runtime_error("the messages hold too many texts of control tokens");
            }
            made = encoded(m_next++);
        } while (m_used.count(made));
        m_originals[made] = original;
        return m_of[original] = made;
    }

    // The text that a placeholder at `at` stands for; `size` is that of the placeholder. One that
    // was written as a JSON escape (`tojson` in ASCII) stands for the text as JSON writes it.
    std::string original_at(const std::string & text, size_t at, size_t & size) const {
        unsigned high = 0, low = 0;
        if (is_private(text, at)) {
            auto found = m_originals.find(text.substr(at, 4));
            if (found != m_originals.end()) {
                size = 4;
                return found->second;
            }
        } else if (text.compare(at, 4, "\\udb") == 0 || text.compare(at, 4, "\\uDB") == 0) {
            std::string escape = text.substr(at, 12);
            if (std::sscanf(escape.c_str(), "\\%*1[u]%4x\\%*1[u]%4x", &high, &low) == 2) {
                auto found = m_originals.find(
                    encoded(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF)));
                if (found != m_originals.end()) {
                    size = 12;
                    std::string quoted = json::make(found->second).dump();
                    return quoted.substr(1, quoted.size() - 2);
                }
            }
        }
        return "";
    }
};

// Where markup stands: texts of control tokens that do not touch what a client wrote.
static std::vector<range> markup_of(
    const std::string & prompt, const control_texts & controls, const std::vector<range> & texts) {
    std::vector<range> out;
    size_t next = 0;
    for (size_t i = 0; i < prompt.size();) {
        while (next < texts.size() && texts[next].end <= i) {
            next++;
        }
        size_t size = controls.at(prompt, i);
        bool is_text = next < texts.size() && texts[next].begin < i + size;
        if (size && !is_text) {
            out.push_back({i, i + size});
            i += size;
        } else {
            i++;
        }
    }
    return out;
}

// What to tokenise without control tokens: all between two of these that holds such a text.
static std::vector<range> plain_of(
    const std::string & prompt, const std::vector<range> & markup, const std::vector<range> & texts) {
    std::vector<range> out;
    size_t begin = 0, next = 0;
    for (size_t i = 0; i <= markup.size(); i++) {
        size_t end = i < markup.size() ? markup[i].begin : prompt.size();
        if (next < texts.size() && texts[next].begin < end) {
            out.push_back({begin, end});
        }
        while (next < texts.size() && texts[next].begin < end) {
            next++;
        }
        begin = i < markup.size() ? markup[i].end : end;
    }
    return out;
}

// --- the model ------------------------------------------------------------------------------------

struct model_texts {
    common_chat_templates_ptr templates, with_tools;  // the latter for models that have one
    std::string bos, eos;
    bool adds_bos, adds_eos, thinks;
    control_texts controls;
};

static model_texts * g_model = nullptr;

static const char * CHATML =
    "{%- for message in messages -%}\n"
    "  {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "  {{- '<|im_start|>assistant\\n' -}}\n"
    "{%- endif -%}";

static common_chat_templates_ptr templates_of(
    const std::string & source, const std::string & bos, const std::string & eos) {
    try {
        return common_chat_templates_init(nullptr, source, bos, eos);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {
        common_chat_template again(source, bos, eos);  // says what the other lost on its way
        throw;
    }
}

static json take_model(const json & question) {
    delete g_model;
    g_model = nullptr;
    const json & own = question.at("template"), & tools = question.at("tool_template");
    std::string bos = question.at("bos"), eos = question.at("eos");
    const json & source = own.is_null() ? tools : own;
    auto templates = templates_of(source.is_null() ? CHATML : source.get<std::string>(), bos, eos);
    common_chat_templates_ptr with_tools;
    if (!tools.is_null()) {
        with_tools = templates_of(tools, bos, eos);
    }
    bool thinks = common_chat_templates_support_enable_thinking(templates.get());
    std::vector<std::string> controls;
    for (const auto & text : question.at("control")) {
        controls.push_back(text);
    }
    auto & abler = with_tools ? with_tools : templates;
    json answer = {{"abilities", common_chat_templates_get_caps(abler.get())}, {"thinks", thinks}};
    g_model = new model_texts{std::move(templates), std::move(with_tools), bos, eos,
                              question.at("adds_bos").get<bool>(),
                              question.at("adds_eos").get<bool>(), thinks, control_texts(controls)};
    return answer;
}

// --- render ---------------------------------------------------------------------------------------

static const common_chat_templates * templates_for(const json & tools) {
    return g_model->with_tools && !tools.empty() ? g_model->with_tools.get()
                                                 : g_model->templates.get();
}

static common_chat_templates_inputs inputs_of(
    const json & question, const std::string & choice, const json & messages, const json & tools,
    const json & options) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(messages);
    inputs.tools = common_chat_tools_parse_oaicompat(tools);
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(choice);
    const json & parallel = question.at("parallel_tool_calls");
    inputs.parallel_tool_calls =
        parallel.is_null()
            ? common_chat_templates_get_caps(templates_for(tools))["supports_parallel_tool_calls"]
            : parallel.get<bool>();
    inputs.continue_final_message =
        common_chat_continuation_parse(question.at("continue_final_message"));
    inputs.add_generation_prompt =
        inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    inputs.enable_thinking = g_model->thinks;
    inputs.chat_template_kwargs["preserve_reasoning"] = "true";  // llama-server's default
    for (const auto & entry : options.items()) {
        inputs.chat_template_kwargs[entry.key()] = entry.value().dump();
    }
    if (options.contains("enable_thinking") && options.at("enable_thinking").is_boolean()) {
        inputs.enable_thinking = options.at("enable_thinking").get<bool>();
    }
    const json & thinking = question.at("thinking");
    if (thinking.is_boolean()) {
        inputs.enable_thinking = thinking.get<bool>();
    } else if (thinking == "none") {
        inputs.enable_thinking = false;
    } else if (thinking.is_string()) {
        inputs.chat_template_kwargs["reasoning_effort"] = thinking.dump();
    }
    return inputs;
}

// As llama-server does it: the tokeniser puts them there.
static std::string without_specials(const std::string & prompt) {
    size_t begin = 0, end = prompt.size();
    const std::string & bos = g_model->bos, & eos = g_model->eos;
    if (g_model->adds_bos && prompt.compare(0, bos.size(), bos) == 0) {
        begin = bos.size();
    }
    if (g_model->adds_eos && end - begin >= eos.size() &&
        prompt.compare(end - eos.size(), eos.size(), eos) == 0) {
        end -= eos.size();
    }
    return prompt.substr(begin, end - begin);
}

static json triggers_of(const common_chat_params & params) {
    json out = json::array();
    for (const auto & trigger : params.grammar_triggers) {
        out.push_back({{"type", static_cast<int>(trigger.type)}, {"value", trigger.value}});
    }
    return out;
}

// The words around thoughts in an answer, and whether the prompt has begun them; null for a template
// that knows none.
static json thoughts_of(const common_chat_params & params) {
    const std::string & start = params.thinking_start_tag, & prompt = params.generation_prompt;
    if (start.empty() || params.thinking_end_tags.empty()) {
        return nullptr;
    }
    size_t begin = prompt.rfind(start);
    bool is_open = begin != std::string::npos;
    for (const auto & end : params.thinking_end_tags) {
        size_t at = prompt.rfind(end);
        is_open = is_open && (at == std::string::npos || at < begin);
    }
    return {{"start", start}, {"ends", params.thinking_end_tags}, {"open", is_open}};
}

// The same where what follows the thoughts is bound, and begins with one of `starts`; null where no
// thoughts can come before it. Some templates want other words in between: then what follows the
// thoughts is not read as what it is.
static json bound_thoughts_of(
    const common_chat_params & params, const common_chat_templates_inputs & inputs,
    const std::vector<std::string> & starts, bool is_call) {
    json thoughts = thoughts_of(params);
    if (thoughts.is_null()) {
        return nullptr;
    }
    std::string start = thoughts.at("start");
    bool is_open = thoughts.at("open").get<bool>();
    bool is_over = params.generation_prompt.find(start) != std::string::npos;
    if (!is_open && (is_over || !inputs.enable_thinking || !inputs.add_generation_prompt)) {
        return nullptr;
    }
    common_chat_parser_params how;
    how.format = params.format;
    how.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    how.generation_prompt = params.generation_prompt;
    common_peg_arena arena;
    arena.load(params.parser);
    std::vector<std::string> ends, calls;
    for (const auto & end : params.thinking_end_tags) {
        if (std::find(starts.begin(), starts.end(), end) != starts.end()) {
            calls.push_back(end);
            continue;
        }
        for (const auto & follows : starts) {
            try {
                std::string text = (is_open ? "" : start) + "x" + end + follows;
                auto read = common_chat_peg_parse(arena, text, is_call, how);
                if (read.content == (is_call ? "" : follows) &&
                    read.reasoning_content.find('x') != std::string::npos) {
                    ends.push_back(end);
                    break;
                }
            } catch (const std::bad_alloc &) {
                throw;
            } catch (const std::exception &) {  // it cannot be read at all
            }
        }
    }
    if (ends.empty()) {
        return nullptr;
    }
    return {{"start", start}, {"ends", ends}, {"open", is_open}, {"calls", calls}};
}

// The words that begin a call, where they are known.
static std::vector<std::string> words_of(const common_chat_params & params) {
    std::vector<std::string> out;
    for (const auto & trigger : params.grammar_triggers) {
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
            out.push_back(trigger.value);
        }
    }
    return out;
}

// Whether a character of a rule stands in a literal or a class of characters; `quote` is what ends
// that, and 0 outside.
static bool is_quoted(const std::string & rule, size_t & at, char & quote) {
    const char c = rule[at];
    if (quote) {
        at += c == '\\';
        quote = c == quote ? 0 : quote;
        return true;
    }
    quote = c == '"' ? c : c == '[' ? ']' : 0;
    return quote != 0;
}

// Names of rules in the text of one.
static std::set<std::string> names_in(const std::string & rule) {
    std::set<std::string> names;
    std::string word;
    char quote = 0;
    for (size_t i = 0; i <= rule.size(); i++) {
        const char c = i < rule.size() ? rule[i] : ' ';
        if (i < rule.size() && is_quoted(rule, i, quote)) {
            continue;
        }
        if (std::isalnum(static_cast<unsigned char>(c)) || c == '-') {
            word += c;
        } else if (!word.empty()) {
            names.insert(word);
            word.clear();
        }
    }
    return names;
}

// The grammar with a single call where its rules have one again and again: some of llama.cpp's
// formats do so whatever was asked for.
static std::string with_one_call(const common_chat_params & params) {
    std::set<std::string> tools, calls;
    const json arena = params.parser.empty() ? json::object() : json::parse(params.parser);
    if (arena.contains("parsers")) {
        const json & parsers = arena.at("parsers");
        for (const auto & each : parsers) {
            if (each.at("type") != "rule") {
                continue;
            }
            const json & child = parsers.at(each.at("child").get<size_t>());
            if (child.at("type") == "tag" && child.at("tag") == "tool") {
                tools.insert(each.at("name").get<std::string>());
            }
        }
    }
    std::vector<std::string> rules = string_split<std::string>(params.grammar, '\n');
    auto has_call = [&](const std::string & rule) {
        for (const auto & name : names_in(rule.substr(std::min(rule.find("::="), rule.size())))) {
            if (tools.count(name) || calls.count(name)) {
                return true;
            }
        }
        return false;
    };
    std::string out;
    for (bool grows = true; grows;) {
        grows = false;
        out.clear();
        for (const auto & rule : rules) {
            const std::string name = rule.substr(0, rule.find(' '));
            if (tools.count(name) || !has_call(rule)) {
                out += rule + "\n";
                continue;
            }
            grows = calls.insert(name).second || grows;
            char quote = 0;
            for (size_t i = 0; i < rule.size(); i++) {
                const size_t begin = i;
                if (is_quoted(rule, i, quote) || rule[i] != '+' || rule[i - 1] != ')') {
                    out += rule.substr(begin, i + 1 - begin);
                }
            }
            out += "\n";
        }
    }
    return out;
}

// Whether a rule of a grammar is one of the calls with words of the template around them.
static bool begins_calls(
    const std::string & grammar, const std::string & name, const std::set<std::string> & triggers) {
    size_t at = name.empty() ? std::string::npos : grammar.find("\n" + name + " ::= ");
    if (at == std::string::npos) {
        return false;
    }
    const std::string rule = grammar.substr(at + 1, grammar.find('\n', at + 1) - at - 1);
    for (const auto & trigger : triggers) {
        if (rule.find(trigger, name.size()) != std::string::npos) {
            return true;
        }
    }
    return false;
}

// The grammar of calls alone, from the first token on. llama.cpp's own also takes the start of the
// prompt, thoughts and any text before a call. Empty where the calls have no rule of their own.
static std::string calls_of(const common_chat_params & required) {
    static const std::string ROOT = "root ::= ";
    size_t at = required.grammar.compare(0, ROOT.size(), ROOT) == 0 ? 0
                                                                  : required.grammar.find("\n" + ROOT);
    if (at == std::string::npos || required.grammar.empty()) {
        return "";
    }
    at += required.grammar[at] == '\n';
    size_t end = std::min(required.grammar.find('\n', at), required.grammar.size());
    std::set<std::string> triggers, found;
    const json parser = json::parse(required.parser);
    for (const auto & each : parser.at("parsers")) {
        if (each.at("type") == "rule" && each.at("trigger") == true) {
            triggers.insert(each.at("name").get<std::string>());
        }
    }
    for (const auto & name : names_in(required.grammar.substr(at + ROOT.size(), end - at - ROOT.size()))) {
        if (triggers.count(name) || begins_calls(required.grammar, name, triggers)) {
            found.insert(name);
        }
    }
    std::string names;
    for (const auto & name : found) {
        names += (names.empty() ? "" : " | ") + name;
    }
    return names.empty() ? ""
                         : required.grammar.substr(0, at) + ROOT + names + required.grammar.substr(end);
}

static json render(const json & question) {
    if (g_model == nullptr) {
        throw std::runtime_error("no model was named");
    }
    json messages = question.at("messages"), tools = question.at("tools");
    json options = question.at("chat_template_kwargs"), open = json::array();
    const std::string choice = question.at("tool_choice");
    const bool may_call = !tools.empty() && choice != "none";
    const bool must_call = may_call && choice == "required";
    const bool is_bound = question.at("bound").get<bool>() && !must_call;
    const bool continues = question.at("continue_final_message") != false;
    const json said = may_call ? convertible(tools, open) : tools;
    const bool is_one_call = may_call && question.at("parallel_tool_calls") == false;
    json asked = question;
    auto apply = [&](const json & told, const std::string & wanted) {
        auto params = common_chat_templates_apply(
            templates_for(tools), inputs_of(asked, wanted, messages, told, options));
        if (is_one_call && !params.grammar.empty()) {
            params.grammar = with_one_call(params);
        }
        return params;
    };
    // All but the prompt comes from what the client wrote, as it stands.
    common_chat_params params;
    std::string calls, begun;
    json thoughts = nullptr;
    std::exception_ptr refusal;
    auto make = [&]() {
        params = apply(said, must_call ? "auto" : choice);
        thoughts = thoughts_of(params);
        const auto words = words_of(params);
        auto inputs = inputs_of(asked, "auto", messages, said, options);
        if (may_call && (must_call || is_bound)) {
            auto required = apply(said, "required");
            calls = calls_of(required);
            if (must_call && calls.empty()) {
                params = required;
                begun = params.generation_prompt;
                return;
            }
        }
        if (must_call) {
            params.grammar_lazy = false;
            params.grammar = calls;
            thoughts = bound_thoughts_of(params, inputs, words, true);
        } else if (is_bound) {
            thoughts = bound_thoughts_of(params, inputs, {"{}"}, false);
        }
    };
    try {
        make();
    } catch (const std::bad_alloc &) {
        throw;
    } catch (...) {
        refusal = std::current_exception();
    }
    if ((is_bound || must_call) && thoughts.is_null()) {
        asked["thinking"] = false;
        if (!refusal) {
            make();
        }
    }
    placeholders hidden(g_model->controls);
    std::vector<range> texts;
    if (hidden.hide({&messages, &tools, &options})) {
        common_chat_params with_hidden = apply(tools, "none");
        if (refusal) {  // a template may refuse markup in a message
            params = with_hidden;
        }
        params.prompt = hidden.restore(whole(without_specials(with_hidden.prompt)), texts);
    } else if (refusal) {
        std::rethrow_exception(refusal);
    } else {
        if (said.dump() != tools.dump()) {  // the model reads what the client wrote
            try {
                params.prompt = apply(tools, "none").prompt;
            } catch (const std::bad_alloc &) {
                throw;
            } catch (const std::exception &) {  // the template cannot write that
            }
        }
        params.prompt = whole(without_specials(params.prompt));
    }
    if (params.prompt.size() > MAX_PROMPT_BYTES) {
        throw std::runtime_error("its text has more than " +
                                 std::to_string(MAX_PROMPT_BYTES >> 20) + " MiB");
    }
    json syntax = {{"format", static_cast<int>(params.format)},
                   {"parser", params.parser},
                   {"generation_prompt", params.generation_prompt},
                   {"one_call", is_one_call},
                   {"continues", continues}};
    if (!calls.empty() && is_bound) {
        syntax["content_parser"] = apply(tools, "none").parser;
        syntax["call_words"] = words_of(params);
    }
    json answer = {
        {"prompt", params.prompt},
        {"stops", params.additional_stops},
        {"preserved", params.preserved_tokens},
        {"syntax", syntax},
        {"thoughts", thoughts},
        {"grammar", params.grammar},
        {"grammar_lazy", params.grammar_lazy},
        {"grammar_triggers", triggers_of(params)},
        {"begun", begun},
        {"calls", is_bound ? calls : ""},
        {"open", open},
    };
    std::vector<range> markup;
    if (!texts.empty() || question.value("spans", false)) {
        markup = markup_of(params.prompt, g_model->controls, texts);
    }
    answer["plain"] = in_characters(params.prompt, plain_of(params.prompt, markup, texts));
    if (question.value("spans", false)) {
        answer["markup"] = in_characters(params.prompt, markup);
    }
    return answer;
}

// --- parse ----------------------------------------------------------------------------------------

static std::string new_id() {
    static const std::string letters =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    static std::random_device random;
    std::string id(32, ' ');
    for (auto & letter : id) {
        letter = letters[random() % letters.size()];
    }
    return id;
}

static const common_peg_arena & parser_of(const std::string & saved) {
    static std::unordered_map<std::string, common_peg_arena> kept;
    auto found = kept.find(saved);
    if (found != kept.end()) {
        return found->second;
    }
    if (kept.size() >= KEPT_PARSERS) {
        kept.clear();
    }
    common_peg_arena arena;
    if (!saved.empty()) {
        arena.load(saved);
    }
    return kept.emplace(saved, std::move(arena)).first->second;
}

// A call whose arguments are no whole JSON when the text has ended is `incomplete`; `whole_calls`
// counts the others.
static json message_of(const common_chat_msg & message, bool has_ended, size_t & whole_calls) {
    json out = {{"role", "assistant"}, {"content", message.content}};
    if (!message.reasoning_content.empty()) {
        out["reasoning_content"] = message.reasoning_content;
    }
    if (!message.tool_calls.empty()) {
        out["tool_calls"] = json::array();
        for (const auto & call : message.tool_calls) {
            json told = {{"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
            if (!json::parse_no_throw(call.arguments).is_discarded()) {
                whole_calls++;
            } else if (has_ended) {
                told["incomplete"] = true;
            }
            out["tool_calls"].push_back(told);
        }
    }
    return out;
}

static json deltas_of(const std::vector<common_chat_msg_diff> & diffs) {
    json out = json::array();
    for (const auto & diff : diffs) {
        if (!diff.reasoning_content_delta.empty()) {
            out.push_back({{"reasoning", diff.reasoning_content_delta}});
        }
        if (!diff.content_delta.empty()) {
            out.push_back({{"content", diff.content_delta}});
        }
        if (diff.tool_call_index != std::string::npos) {
            const auto & call = diff.tool_call_delta;
            json told = {{"index", diff.tool_call_index}};
            if (!call.name.empty()) {
                told["id"] = call.id;
                told["name"] = call.name;
            }
            told["arguments"] = call.arguments;
            json calls = json::array();
            calls.push_back(told);
            out.push_back({{"tool_calls", calls}});
        }
    }
    return out;
}

// Whether a text that is bound, or calls a tool instead, begins no call.
static bool is_no_call(const json & syntax, const std::string & text) {
    if (!syntax.contains("content_parser")) {
        return false;
    }
    for (const auto & word : syntax.at("call_words")) {
        if (text.find(word.get<std::string>()) != std::string::npos) {
            return false;
        }
    }
    return true;
}

static json parse(const json & question) {
    const json & syntax = question.at("syntax");
    common_chat_parser_params params;
    params.format = static_cast<common_chat_format>(syntax.at("format").get<int>());
    params.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    params.generation_prompt = syntax.at("generation_prompt");
    params.is_continuation = syntax.at("continues").get<bool>();
    const common_peg_arena & arena = parser_of(syntax.at("parser"));
    std::string text = question.at("text");
    bool is_partial = question.at("partial").get<bool>(), is_whole = !is_partial;

    common_chat_msg former;
    if (question.at("former").is_object()) {
        json list = json::array();
        list.push_back(question.at("former"));
        former = common_chat_msgs_parse_oaicompat(list)[0];
    } else if (params.is_continuation) {
        former = common_chat_peg_parse(arena, "", true, params);
    }
    common_chat_msg message;
    try {
        message = common_chat_peg_parse(arena, text, is_partial, params);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {  // a model says what it will; what can be read is read
        is_whole = false;
        try {
            message = common_chat_peg_parse(arena, text, true, params);
        } catch (const std::exception &) {
            message = former;
            if (!is_partial && former.empty()) {
                message.content = text;
            }
        }
    }
    const bool is_answer = !is_partial && is_no_call(syntax, text) && former.tool_calls.empty();
    if (is_answer && message.tool_calls.empty() && (!is_whole || !message.content.empty())) {
        try {  // what is bound, where a call may begin like it
            message = common_chat_peg_parse(parser_of(syntax.at("content_parser")), text, false, params);
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception &) {  // the template wants other words before it
            if (!is_whole && former.empty()) {
                message.content = text;
            }
        }
        is_whole = true;
    }
    if (message.empty()) {
        message = former;
    }
    if (syntax.at("one_call").get<bool>() && message.tool_calls.size() > 1) {
        message.tool_calls.resize(1);  // some formats bind nothing
    }
    // A call is told when its name is whole: once its arguments begin, or the text has ended well.
    if (!is_whole && message.tool_calls.size() > former.tool_calls.size() &&
        message.tool_calls.back().arguments.empty()) {
        message.tool_calls.pop_back();
    }
    for (auto & call : message.tool_calls) {
        if (is_whole && call.arguments.empty()) {
            call.arguments = "{}";
        }
    }
    for (size_t i = 0; i < message.tool_calls.size(); i++) {
        auto & call = message.tool_calls[i];
        if (i < former.tool_calls.size()) {
            call.id = former.tool_calls[i].id;
        } else if (call.id.empty()) {
            call.id = new_id();
        }
    }
    std::vector<common_chat_msg_diff> diffs;
    try {
        diffs = common_chat_msg_diff::compute_diffs(former, message);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception &) {  // what was told cannot be taken back
        if (!is_partial) {
            throw;
        }
        message = former;
    }
    size_t whole_calls = 0;
    json told = message_of(message, !is_partial, whole_calls);
    return {{"message", told},
            {"deltas", deltas_of(diffs)},
            {"whole", is_whole},
            {"calls", whole_calls}};
}

// --- questions and answers ------------------------------------------------------------------------

static json answer_to(const std::string & body) {
    static const std::string REFUSED = "Jinja Exception: ";  // what `raise_exception` makes of it
    static const std::string MALFORMED = "Failed to parse ";  // messages or tools
    static const std::string OVERFLOW = "[json.exception.out_of_range.406]";
    try {
        json question = json::parse(body);
        std::string what = question.at("ask");
        if (what == "model") {
            return take_model(question);
        }
        return what == "parse" ? parse(question) : render(question);
    } catch (const std::bad_alloc &) {
        return {{"failed", "it needs more than " + std::to_string(MEMORY_BYTES >> 20) +
                               " MiB of memory"}};
    } catch (const std::exception & error) {
        std::string text = error.what();
        if (text.compare(0, OVERFLOW.size(), OVERFLOW) == 0) {
            return {{"refused", "a number in the conversation or its tools is too large"}};
        }
        size_t at = text.rfind(REFUSED);
        if (at == std::string::npos) {
            bool is_malformed = text.compare(0, MALFORMED.size(), MALFORMED) == 0;
            return {{is_malformed ? "refused" : "failed", text}};
        }
        text = text.substr(at + REFUSED.size());
        return {{"refused", text.substr(0, text.find('\n'))}};
    }
}

static bool read_all(char * data, size_t size) {
    while (size > 0) {
        ssize_t got = read(0, data, size);
        if (got <= 0) {
            return false;
        }
        data += got;
        size -= got;
    }
    return true;
}

static bool write_frame(const std::string & body) {
    uint32_t n = static_cast<uint32_t>(body.size());
    std::string out = {static_cast<char>(n), static_cast<char>(n >> 8), static_cast<char>(n >> 16),
                       static_cast<char>(n >> 24)};
    out += body;
    for (size_t at = 0; at < out.size();) {
        ssize_t put = write(1, out.data() + at, out.size() - at);
        if (put <= 0) {
            return false;
        }
        at += put;
    }
    return true;
}

int main() {
    bound_for_life();
    common_log_set_verbosity_thold(-1);
    if (!write_frame("{}")) {
        return 1;
    }
    unsigned char head[4];
    while (read_all(reinterpret_cast<char *>(head), 4)) {
        std::string body(head[0] | head[1] << 8 | head[2] << 16 | size_t(head[3]) << 24, '\0');
        if (!read_all(&body[0], body.size())) {
            break;
        }
        bound_question();
        if (!write_frame(answer_to(body).dump_safe())) {
            break;
        }
    }
    return 0;
}
