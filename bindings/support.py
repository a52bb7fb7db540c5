"""C that goes into the compiled module beside what the header declares.

It does two jobs that Python cannot do well from the outside.  It keeps libllama's log: any thread
may write it, in the middle of a decode that must not wait for the GIL.  And it reads a vocabulary
of 150,000 tokens in one call instead of 150,000.
"""

from __future__ import annotations

CDEF = """
void uma_log_install(int minimum_level);
void uma_log_show(int minimum_level);
size_t uma_log_position(void);
size_t uma_log_read(size_t since, char *out, size_t capacity);
int64_t uma_piece_table(const struct llama_vocab *vocab, int32_t n, bool hidden, int32_t *offsets,
                        char *data, int64_t capacity);
void uma_eog_mask(const struct llama_vocab *vocab, int32_t n, uint8_t *mask);
extern "Python" bool uma_progress(float fraction, void *handle);
"""

SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The last UMA_LOG_BYTES of the log; each line starts with the digit of its level. */
#define UMA_LOG_BYTES 65536
static pthread_mutex_t uma_log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char uma_log_ring[UMA_LOG_BYTES];
static size_t uma_log_total;
static int uma_log_minimum;
static int uma_log_level;
static int uma_log_shown = 1 << 20; /* from this level on lines go to stderr too */
static bool uma_log_at_start = true;

static void uma_log_put(char c) { uma_log_ring[uma_log_total++ % UMA_LOG_BYTES] = c; }

static void uma_log_sink(enum ggml_log_level level, const char *text, void *unused) {
    (void) unused;
    pthread_mutex_lock(&uma_log_mutex);
    if (level != GGML_LOG_LEVEL_CONT) { uma_log_level = (int) level; }
    if (uma_log_level >= uma_log_shown) { fputs(text, stderr); }
    if (uma_log_level >= uma_log_minimum) {
        for (; *text; ++text) {
            if (uma_log_at_start) { uma_log_put((char) ('0' + uma_log_level)); }
            uma_log_put(*text);
            uma_log_at_start = *text == '\n';
        }
    }
    pthread_mutex_unlock(&uma_log_mutex);
}

static void uma_log_install(int minimum_level) {
    uma_log_minimum = minimum_level;
    llama_log_set(uma_log_sink, NULL);
}

/* What is only kept is lost with the process: an abort takes the reason with it. */
static void uma_log_show(int minimum_level) { uma_log_shown = minimum_level; }

/* Bytes logged so far: a mark to read from later. */
static size_t uma_log_position(void) {
    pthread_mutex_lock(&uma_log_mutex);
    size_t total = uma_log_total;
    pthread_mutex_unlock(&uma_log_mutex);
    return total;
}

/* Copies what was logged after `since`, as far as it is still kept; returns the bytes copied. */
static size_t uma_log_read(size_t since, char *out, size_t capacity) {
    pthread_mutex_lock(&uma_log_mutex);
    size_t oldest = uma_log_total > UMA_LOG_BYTES ? uma_log_total - UMA_LOG_BYTES : 0;
    size_t from = since > oldest ? since : oldest;
    if (uma_log_total - from > capacity) { from = uma_log_total - capacity; }
    size_t n = 0;
    for (size_t i = from; i < uma_log_total; ++i) { out[n++] = uma_log_ring[i % UMA_LOG_BYTES]; }
    pthread_mutex_unlock(&uma_log_mutex);
    return n;
}

/* How the vocabulary spells a token that has no text: NULL where it has some. */
static const char *uma_hidden_name(const struct llama_vocab *vocab, int32_t token) {
    char none[1];
    if (llama_token_to_piece(vocab, token, none, 0, 0, false) != 0) { return NULL; }
    return llama_vocab_get_text(vocab, token);
}

/* Texts of tokens 0..n-1 one after another; offsets[i] is where token i begins, offsets[n] the
   end. `hidden`: the names of those that have no text instead, the others being empty. Returns the
   bytes needed; `data` is complete if that is within `capacity`. */
static int64_t uma_piece_table(const struct llama_vocab *vocab, int32_t n, bool hidden,
                               int32_t *offsets, char *data, int64_t capacity) {
    int64_t used = 0;
    char none[1];
    for (int32_t i = 0; i < n; ++i) {
        offsets[i] = (int32_t) used;
        int64_t left = capacity > used ? capacity - used : 0;
        int32_t room = left > INT32_MAX ? INT32_MAX : (int32_t) left;
        int64_t length;
        if (hidden) {
            const char *name = uma_hidden_name(vocab, i);
            length = name ? (int64_t) strlen(name) : 0;
            if (length && length <= room) { memcpy(data + used, name, (size_t) length); }
        } else {
            length = llama_token_to_piece(vocab, i, room ? data + used : none, room, 0, false);
        }
        used += length < 0 ? -length : length;
    }
    offsets[n] = (int32_t) used;
    return used;
}

static void uma_eog_mask(const struct llama_vocab *vocab, int32_t n, uint8_t *mask) {
    for (int32_t i = 0; i < n; ++i) { mask[i] = llama_vocab_is_eog(vocab, i) ? 1 : 0; }
}
"""
