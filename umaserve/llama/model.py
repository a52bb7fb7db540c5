"""A loaded model: weights and vocabulary (``llama_model``, ``llama_vocab``).

Long: all that libllama tells of a model.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umaserve.models.experts import used_key
from umaserve.models.gguf.faults import check_gguf
from umaserve.models.gguf.header import GGUFError

from .errors import ModelLoadError
from .library import Library

if TYPE_CHECKING:
    import numpy as np

_INT32_MIN = -(1 << 31)
_MAX_TEXT_BYTES = (1 << 31) - 1


class Model:
    """Owns a ``llama_model``; `close` frees it, after the contexts made from it.

    Reading methods may be called from any thread: libllama's vocabulary is read-only once loaded.
    """

    def __init__(self, library: Library, pointer: Any, path: Path, warnings: list[str]) -> None:
        lib, ffi, vocab = library.lib, library.ffi, library.lib.llama_model_get_vocab(pointer)
        self.library, self.pointer, self.vocab = library, pointer, vocab
        self.path, self.warnings = path, warnings
        self.n_vocab = int(lib.llama_vocab_n_tokens(vocab))
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(pointer))  # positions
        self.n_embd = int(lib.llama_model_n_embd_out(pointer))  # numbers of an embedding
        self.n_embd_input = int(lib.llama_model_n_embd_inp(pointer))  # of one in place of a token
        self.n_params = int(lib.llama_model_n_params(pointer))
        self.size_bytes = int(lib.llama_model_size(pointer))  # of all tensors
        self.description = self._string(lib.llama_model_desc)  # such as ``qwen2 0.5B Q8_0``
        # Jinja, None where there is none; some models have another one for chats with tools
        self.chat_template = self.template(ffi.NULL)
        self.tool_template = self.template(ffi.new("char[]", b"tool_use"))
        # whether the tokeniser puts these before and behind a text; -1: there is no such token
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(vocab))
        self.adds_eos = bool(lib.llama_vocab_get_add_eos(vocab))
        self.token_bos = int(lib.llama_vocab_bos(vocab))
        self.token_eos = int(lib.llama_vocab_eos(vocab))
        self._can_add_special = self._special_tokens_exist()

    @classmethod
    def open(
        cls,
        library: Library,
        path: str | os.PathLike[str],
        *,
        n_gpu_layers: int = -1,
        use_mmap: bool = True,
        use_mlock: bool = False,
        progress: Callable[[float], bool] | None = None,
        vocab_only: bool = False,
        repack: bool = True,
        experts_used: int = 0,
        heads: bool = False,
    ) -> Model:
        """``llama_model_load_from_file``.

        With `repack` (``use_extra_bufts``) a processor with instructions such as AMX gets a copy of
        the weights in their layout, unless `_may_repack` is False. Otherwise libllama reads the
        mapped file.
        `n_gpu_layers` below 0 means all. `experts_used` stands in the place of the model's own
        number of experts (0 leaves it; `why_not_used` says what the model can). `heads`: load those
        for several tokens (MTP), which the file must have. `progress` is called in this thread with
        the fraction loaded and returns True to continue. Raises `ModelLoadError` with the reason
        that libllama logged; its warnings are in `warnings`. The file's header is checked first:
        libllama may abort on damage.
        """
        lib, ffi = library.lib, library.ffi
        path = Path(path)
        try:
            info = check_gguf(path)
        except GGUFError as error:
            raise ModelLoadError(str(error)) from error
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = getattr(lib, _LOAD_MODES[use_mmap, use_mlock])
        params.vocab_only, params.load_mtp = vocab_only, heads
        params.use_extra_bufts = repack and (vocab_only or _may_repack(library, path))
        # has to live until the model is loaded
        overrides = _overrides(library, {used_key(info): experts_used} if experts_used else {})
        params.kv_overrides = overrides
        call = _Progress(progress)
        handle = ffi.new_handle(call)
        _register(library)
        params.progress_callback = lib.uma_progress
        params.progress_callback_user_data = handle
        mark = library.log_position()
        pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
        if call.error is not None:
            if pointer != ffi.NULL:
                lib.llama_model_free(pointer)
            raise call.error
        if pointer == ffi.NULL:
            if call.stopped:
                raise ModelLoadError(f"loading {path} was stopped")
            why = library.first_error(mark) or "libllama gave no reason"
            raise ModelLoadError(f"{path} cannot be loaded: {why}")
        if lib.llama_vocab_type(lib.llama_model_get_vocab(pointer)) == lib.LLAMA_VOCAB_TYPE_NONE:
            lib.llama_model_free(pointer)
            raise ModelLoadError(f"{path} has no tokenizer, so no text can be given to it")
        return cls(library, pointer, path, library.warnings(mark))

    def close(self) -> None:
        """``llama_model_free``. Closing twice is harmless."""
        if self.pointer is not None:
            self.library.lib.llama_model_free(self.pointer)
            self.pointer = self.vocab = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def metadata(self) -> dict[str, str]:
        """The file's scalar metadata, as ``llama_model_meta_val_str_by_index`` prints it."""
        lib = self.library.lib
        return {
            self._string(lib.llama_model_meta_key_by_index, i): self._string(
                lib.llama_model_meta_val_str_by_index, i
            )
            for i in range(lib.llama_model_meta_count(self.pointer))
        }

    def template(self, name: Any) -> str | None:
        """Return a chat template, or None; ``name``: ``char *`` (``llama_model_chat_template``)."""
        text = self.library.lib.llama_model_chat_template(self.pointer, name)
        return None if text == self.library.ffi.NULL else self.library.text(text)

    @property
    def gap_tokens(self) -> dict[str, int]:
        """Tokens around a gap in a text (``llama_vocab_fim_*``), those that there are."""
        lib = self.library.lib
        found = {
            "prefix": lib.llama_vocab_fim_pre, "suffix": lib.llama_vocab_fim_suf,
            "middle": lib.llama_vocab_fim_mid, "repo": lib.llama_vocab_fim_rep,
            "file": lib.llama_vocab_fim_sep,
        }  # fmt: skip
        tokens = {name: int(token(self.vocab)) for name, token in found.items()}
        return {name: token for name, token in tokens.items() if token >= 0}

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """``llama_tokenize``; safe to call from several threads.

        `add_special` adds what the model starts with, `parse_special` turns the texts of control
        tokens into these. NUL characters are characters like any other. Raises ValueError where
        the text is longer than libllama can take (2 GiB) or the tokens are too many.
        """
        lib, ffi = self.library.lib, self.library.ffi
        data = text.encode("utf-8", "replace")
        if len(data) > _MAX_TEXT_BYTES:
            raise ValueError("the text is longer than 2 GiB")
        source = ffi.from_buffer("char[]", data) if data else ffi.new("char[]", 1)
        special = add_special and self._can_add_special
        room = len(data) + 8
        for _ in range(2):
            tokens = ffi.new("llama_token[]", room)
            count = lib.llama_tokenize(
                self.vocab, source, len(data), tokens, room, special, parse_special
            )
            if count >= 0:
                return ffi.unpack(tokens, count) if count else []
            if count == _INT32_MIN:
                raise ValueError("the text has more tokens than libllama can count")
            room = -count
        raise ValueError("libllama asks for more room than it said it needs")

    def token_to_piece_bytes(self, token: int, special: bool = False) -> bytes:
        """The text of `token` (``llama_token_to_piece``), which may end amid a character.

        `special` renders control tokens too. Raises ValueError for a token out of range.
        """
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token {token} is not in 0..{self.n_vocab - 1}")
        lib, ffi = self.library.lib, self.library.ffi
        room = 64
        while True:
            buffer = ffi.new("char[]", room)
            count = lib.llama_token_to_piece(self.vocab, token, buffer, room, 0, special)
            if count >= 0:
                return bytes(ffi.buffer(buffer, count))
            room = -count

    def piece_table(self, hidden: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """(offsets int32[n_vocab + 1], data uint8[]): all tokens' texts, one after another.

        Token i reads ``data[offsets[i]:offsets[i + 1]]``. Control tokens, the unknown token and
        unused tokens are empty. With `hidden` these are spelled as the vocabulary has them, and all
        others are empty. New arrays, owned by the caller.
        """
        import numpy as np

        lib, ffi = self.library.lib, self.library.ffi
        offsets = np.zeros(self.n_vocab + 1, np.int32)
        where = ffi.cast("int32_t *", offsets.ctypes.data)
        room = (1 if hidden else 16) * self.n_vocab
        while True:
            data = np.zeros(max(room, 1), np.uint8)
            text = ffi.cast("char *", data.ctypes.data)
            used = lib.uma_piece_table(self.vocab, self.n_vocab, hidden, where, text, room)
            if used <= room:
                return offsets, data[:used].copy()
            room = used

    def eog_mask(self) -> np.ndarray:
        """uint8[n_vocab]: 1 where the token ends a generation (``llama_vocab_is_eog``)."""
        import numpy as np

        mask = np.zeros(self.n_vocab, np.uint8)
        where = self.library.ffi.cast("uint8_t *", mask.ctypes.data)
        self.library.lib.uma_eog_mask(self.vocab, self.n_vocab, where)
        return mask

    def _special_tokens_exist(self) -> bool:
        """Whether the tokens that the model adds to a text exist; libllama aborts otherwise."""
        lib, vocab = self.library.lib, self.vocab
        wanted = (
            (lib.llama_vocab_get_add_bos, lib.llama_vocab_bos),
            (lib.llama_vocab_get_add_eos, lib.llama_vocab_eos),
            (lib.llama_vocab_get_add_sep, lib.llama_vocab_sep),
        )
        return all(token(vocab) >= 0 for is_added, token in wanted if is_added(vocab))

    def _string(self, function: Any, *arguments: int) -> str:
        """Calls one of the functions that fill a buffer and return the length they wanted."""
        ffi = self.library.ffi
        room = 256
        while True:
            buffer = ffi.new("char[]", room)
            count = function(self.pointer, *arguments, buffer, room)
            if count < room:
                return bytes(ffi.buffer(buffer, max(count, 0))).decode("utf-8", "replace")
            room = count + 1


_LOAD_MODES = {
    (False, False): "LLAMA_LOAD_MODE_NONE",
    (True, False): "LLAMA_LOAD_MODE_MMAP",
    (False, True): "LLAMA_LOAD_MODE_MLOCK",
    (True, True): "LLAMA_LOAD_MODE_MMAP_MLOCK",
}


def _may_repack(library: Library, path: Path) -> bool:
    """Return whether the processor's own layouts of weights give right results for a model.

    Where a batch has several sequences of a recurrent state, ``ggml_backend_amx_mul_mat`` reads
    beyond the weights.  It moves their address with each sequence, though all share them.
    """
    if not _has_amx(library):
        return True
    lib = library.lib
    params = lib.llama_model_default_params()
    params.vocab_only = True
    pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
    if pointer == library.ffi.NULL:
        return True  # the load that follows says why
    try:
        return not (lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer))
    finally:
        lib.llama_model_free(pointer)


def _has_amx(library: Library) -> bool:
    """Return whether libllama uses AMX on this processor."""
    return b"AMX_INT8 = 1" in library.ffi.string(library.lib.llama_print_system_info())


def _overrides(library: Library, numbers: dict[str, int]) -> Any:
    """``llama_model_kv_override[]``, ended by an empty key: `numbers` in the place of what the
    file says under these keys.  The caller owns it."""
    found = library.ffi.new("struct llama_model_kv_override[]", len(numbers) + 1)
    for entry, (key, number) in zip(found, numbers.items(), strict=False):
        entry.key = key.encode()
        entry.tag = library.lib.LLAMA_KV_OVERRIDE_TYPE_INT
        entry.val_i64 = number
    return found


class _Progress:
    """Carries a Python callback through libllama, and what it raised back out."""

    def __init__(self, callback: Callable[[float], bool] | None) -> None:
        self.callback = callback
        self.error: BaseException | None = None
        self.stopped = False

    def __call__(self, fraction: float) -> bool:
        if self.callback is None:
            return True
        try:
            self.stopped = not self.callback(fraction)
        except BaseException as error:  # noqa: BLE001 - raised again once C code has returned
            self.error = error
            return False
        return not self.stopped


_registered = False
_register_lock = threading.Lock()


def _register(library: Library) -> None:
    """Gives the compiled module the Python side of its progress callback, once."""
    global _registered
    with _register_lock:
        if not _registered:
            ffi = library.ffi
            ffi.def_extern(name="uma_progress")(
                lambda fraction, handle: ffi.from_handle(handle)(fraction)
            )
            _registered = True
