// uma-eyes: pictures to embeddings, with llama.cpp's own tools/mtmd.
//
// Pictures come from anybody, and so do projectors. So both are read here, in a process that the
// front bounds in time and ends. Of the model only the vocabulary is loaded: it spells what stands
// around a picture.
//
//     uma-eyes MODEL PROJECTOR THREADS MAX_PIXELS
//
// A picture's file comes on standard input, its answer leaves on standard output, one after the
// other; the first answer says that the projector is loaded. All are frames: a uint32 little-endian
// length, then that many bytes. An answer begins with the length of its JSON (uint32), and the JSON.
// Behind it are embeddings, float32. umaserve/eyes/answers.py has the answers.

#include "mtmd.h"

#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_ONLY_BMP
#define STBI_ONLY_GIF
#define STBI_NO_STDIO
#define STBI_MAX_DIMENSIONS 65536
#include "stb/stb_image.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

int projector_width(const mtmd_context * context);  // projector.cpp

static const size_t DECODING_BYTES = 1u << 30;  // that a picture's file may take to be decoded
static const uint32_t MAX_FILE_BYTES = 64u << 20;
static const int MAX_TOKENS = 1 << 16;  // of one picture

// --- bounds ---------------------------------------------------------------------------------------

static void bound_for_life() {
    rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);  // a core file would hold what people sent
#ifdef __linux__
    prctl(PR_SET_DUMPABLE, 0);  // nor does one go to a program that collects them
#endif
}

// Memory for data is bounded while a file is decoded: a small one may inflate without end.
class bounded_memory {
  public:
    bounded_memory() {
#ifdef __linux__
        unsigned long used = 0;
        if (FILE * file = std::fopen("/proc/self/statm", "r")) {
            if (std::fscanf(file, "%*u %*u %*u %*u %*u %lu", &used) != 1) {
                used = 0;
            }
            std::fclose(file);
        }
        getrlimit(RLIMIT_DATA, &m_before);
        rlimit limit = m_before;
        limit.rlim_cur = used * sysconf(_SC_PAGESIZE) + DECODING_BYTES;
        if (used && limit.rlim_cur < m_before.rlim_max) {
            setrlimit(RLIMIT_DATA, &limit);
        }
#endif
    }
    ~bounded_memory() {
#ifdef __linux__
        setrlimit(RLIMIT_DATA, &m_before);
#endif
    }

  private:
    rlimit m_before = {};
};

// --- answers --------------------------------------------------------------------------------------

struct answer {
    std::string json;
    std::vector<float> embeddings;
};

// A text of somebody else as a JSON string, in printable ASCII.
static std::string quoted(const std::string & text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += c < 0x20 || c > 0x7E ? ' ' : static_cast<char>(c);
    }
    return out + '"';
}

static answer refused(const std::string & why) { return {"{\"refused\":" + quoted(why) + "}", {}}; }

static bool write_all(const void * data, size_t size) {
    auto at = static_cast<const char *>(data);
    while (size > 0) {
        ssize_t put = write(1, at, size);
        if (put <= 0) {
            return false;
        }
        at += put;
        size -= put;
    }
    return true;
}

static void put_u32(unsigned char * out, size_t n) {
    for (int i = 0; i < 4; i++) {
        out[i] = static_cast<unsigned char>(n >> 8 * i);
    }
}

static bool write_answer(const answer & a) {
    size_t bytes = a.embeddings.size() * sizeof(float);
    unsigned char head[8];
    put_u32(head, 4 + a.json.size() + bytes);
    put_u32(head + 4, a.json.size());
    return write_all(head, 8) && write_all(a.json.data(), a.json.size()) &&
           write_all(a.embeddings.data(), bytes);
}

static bool read_all(void * data, size_t size) {
    auto at = static_cast<char *>(data);
    while (size > 0) {
        ssize_t got = read(0, at, size);
        if (got <= 0) {
            return false;
        }
        at += got;
        size -= got;
    }
    return true;
}

// --- pictures -------------------------------------------------------------------------------------

struct deleter {
    void operator()(mtmd_bitmap * bitmap) const { mtmd_bitmap_free(bitmap); }
    void operator()(mtmd_input_chunks * chunks) const { mtmd_input_chunks_free(chunks); }
};
using bitmap_ptr = std::unique_ptr<mtmd_bitmap, deleter>;
using chunks_ptr = std::unique_ptr<mtmd_input_chunks, deleter>;

// The picture, or none and why.
static bitmap_ptr decode(const std::vector<unsigned char> & file, long max_pixels,
                         std::string & why) {
    int nx = 0, ny = 0, channels = 0;
    int size = static_cast<int>(file.size());
    if (!stbi_info_from_memory(file.data(), size, &nx, &ny, &channels) || nx < 1 || ny < 1) {
        why = "it is no PNG, JPEG, GIF or BMP that can be read";
        return nullptr;
    }
    if (static_cast<long>(nx) * ny > max_pixels) {
        why = "it has " + std::to_string(nx) + " x " + std::to_string(ny) +
              " pixels; the limit is " + std::to_string(max_pixels);
        return nullptr;
    }
    unsigned char * data;
    {
        bounded_memory bound;
        data = stbi_load_from_memory(file.data(), size, &nx, &ny, &channels, 3);
    }
    if (!data) {
        const char * reason = stbi_failure_reason();
        why = std::string("it is damaged (") + (reason ? reason : "no reason is known") + ")";
        return nullptr;
    }
    bitmap_ptr bitmap;
    if (static_cast<long>(nx) * ny <= max_pixels) {
        bitmap.reset(mtmd_bitmap_init(nx, ny, data));
    } else {
        why = "its header lies about its size";
    }
    stbi_image_free(data);
    return bitmap;
}

static answer look(mtmd_context * context, const std::vector<unsigned char> & file,
                   long max_pixels) {
    std::string why;
    bitmap_ptr bitmap = decode(file, max_pixels, why);
    if (!bitmap) {
        return refused(why);
    }
    const char * marker = mtmd_get_marker(context);
    mtmd_input_text text = {marker, std::strlen(marker), false, true};
    chunks_ptr chunks(mtmd_input_chunks_init());
    const mtmd_bitmap * pictures[] = {bitmap.get()};
    if (mtmd_tokenize(context, chunks.get(), &text, pictures, 1) != 0) {
        return refused("the projector cannot take it");
    }
    size_t width = projector_width(context);
    answer out;
    out.json = "{\"nx\":" + std::to_string(mtmd_bitmap_get_nx(bitmap.get())) +
               ",\"ny\":" + std::to_string(mtmd_bitmap_get_ny(bitmap.get())) +
               ",\"width\":" + std::to_string(width) + ",\"runs\":[";
    int tokens = 0;
    for (size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); i++) {
        const mtmd_input_chunk * chunk = mtmd_input_chunks_get(chunks.get(), i);
        size_t n = mtmd_input_chunk_get_n_tokens(chunk);
        out.json += i ? "," : "";
        if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
            const llama_token * ids = mtmd_input_chunk_get_tokens_text(chunk, &n);
            out.json += "{\"tokens\":[";
            for (size_t j = 0; j < n; j++) {
                out.json += (j ? "," : "") + std::to_string(ids[j]);
            }
            out.json += "]}";
            continue;
        }
        tokens += static_cast<int>(n);
        if (n == 0 || tokens > MAX_TOKENS || mtmd_encode_chunk(context, chunk) != 0) {
            return refused("the projector cannot encode it");
        }
        const float * embeddings = mtmd_get_output_embd(context);
        out.embeddings.insert(out.embeddings.end(), embeddings, embeddings + n * width);
        bool non_causal = mtmd_decode_use_non_causal(context, chunk);
        size_t columns = 0;
        if (mtmd_decode_use_mrope(context)) {
            const mtmd_image_tokens * grid = mtmd_input_chunk_get_tokens_image(chunk);
            mtmd_decoder_pos last = mtmd_image_tokens_get_decoder_pos(grid, 0, n - 1);
            bool is_line = last.t == n - 1 && last.x == n - 1 && last.y == n - 1;
            if (last.t == 0) {
                columns = last.x + 1;
            } else if (!is_line) {
                return refused("its positions are of a kind that is not known here");
            }
        }
        out.json += "{\"rows\":" + std::to_string(n) + ",\"columns\":" + std::to_string(columns) +
                    ",\"non_causal\":" + (non_causal ? "true" : "false") + "}";
    }
    out.json += "]}";
    return out;
}

// --- the process ----------------------------------------------------------------------------------

static std::string last_error;

static void keep_error(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        last_error = text;
        while (!last_error.empty() && last_error.back() == '\n') {
            last_error.pop_back();
        }
    }
}

static mtmd_context * open(const char * model_path, const char * projector, int threads,
                           std::string & why) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    const llama_model * model = llama_model_load_from_file(model_path, params);
    if (!model) {
        why = "the model's vocabulary cannot be read: " + last_error;
        return nullptr;
    }
    last_error.clear();
    mtmd_context_params wanted = mtmd_context_params_default();
    wanted.print_timings = false;
    wanted.n_threads = threads;
    wanted.warmup = false;
    mtmd_context * context = mtmd_init_from_file(projector, model, wanted);
    if (!context) {
        why = "the projector cannot be loaded: " + last_error;
    } else if (!mtmd_support_vision(context)) {
        why = "the projector is not for pictures";
    } else {
        return context;
    }
    return nullptr;
}

int main(int count, char ** arguments) {
    if (count != 5) {
        return 2;
    }
    bound_for_life();
    llama_log_set(keep_error, nullptr);
    mtmd_log_set(keep_error, nullptr);
    std::string why;
    mtmd_context * context = open(arguments[1], arguments[2], std::atoi(arguments[3]), why);
    if (!context) {
        write_answer(refused(why));
        return 1;
    }
    long max_pixels = std::atol(arguments[4]);
    answer ready = {"{\"width\":" + std::to_string(projector_width(context)) + "}", {}};
    if (!write_answer(ready)) {
        return 1;
    }
    unsigned char head[4];
    while (read_all(head, 4)) {
        uint32_t size = head[0] | head[1] << 8 | head[2] << 16 | uint32_t(head[3]) << 24;
        if (size > MAX_FILE_BYTES) {
            return 1;
        }
        std::vector<unsigned char> file(size);
        if (!read_all(file.data(), size)) {
            break;
        }
        answer found;
        try {
            found = look(context, file, max_pixels);
        } catch (const std::bad_alloc &) {
            found = refused("it needs more memory than there is");
        } catch (const std::exception & error) {
            found = refused(error.what());
        }
        if (!write_answer(found)) {
            break;
        }
    }
    return 0;  // the system frees it all
}
