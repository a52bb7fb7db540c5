"""A context: KV cells and compute buffers of one model (``llama_context``)."""

from __future__ import annotations

from typing import Any

from .errors import ContextError
from .library import Library
from .model import Model


class Context:
    """Owns a ``llama_context``; `close` frees it. One thread at a time may use it.

    `pointer` is the cffi ``struct llama_context *``, `address` the same as a number.
    """

    def __init__(self, model: Model, pointer: Any) -> None:
        self.model = model
        self.library = model.library
        self.pointer = pointer
        self.address = int(self.library.ffi.cast("uintptr_t", pointer))
        self.memory = self.library.lib.llama_get_memory(pointer)
        self.n_ctx = int(self.library.lib.llama_n_ctx(pointer))
        self.n_batch = int(self.library.lib.llama_n_batch(pointer))
        self.n_ubatch = int(self.library.lib.llama_n_ubatch(pointer))
        self.n_seq_max = int(self.library.lib.llama_n_seq_max(pointer))

    @classmethod
    def open(
        cls,
        model: Model,
        *,
        n_ctx: int,
        n_threads: int = 1,
        n_threads_batch: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: bool | None = None,
        **others: Any,
    ) -> Context:
        """``llama_init_from_model``.

        `n_ctx` KV cells, shared by all sequences unless `kv_unified` is false. `type_k` and
        `type_v` are ggml type names (``f16``, ``q8_0``). `flash_attn` None lets libllama decide.
        `others` are further fields of ``llama_context_params`` by name, with libllama's defaults
        (`n_batch` 2048, `n_ubatch` 512, `n_seq_max` 1). Raises `ContextError` with the reason that
        libllama logged.
        """
        library = model.library
        lib, ffi = library.lib, library.ffi
        params = lib.llama_context_default_params()
        values = {
            "kv_unified": True,
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "n_threads_batch": n_threads if n_threads_batch is None else n_threads_batch,
            "type_k": kv_type(library, type_k),
            "type_v": kv_type(library, type_v),
            "flash_attn_type": _flash_attention(lib, flash_attn),
            **others,
        }
        for name, value in values.items():
            try:
                setattr(params, name, value)
            except AttributeError:
                raise ContextError(f"llama_context_params has no field {name!r}") from None
            except (OverflowError, TypeError) as error:
                raise ContextError(f"{name} cannot be {value!r}: {error}") from error
        mark = library.log_position()
        pointer = lib.llama_init_from_model(model.pointer, params)
        if pointer == ffi.NULL:
            why = library.first_error(mark) or "libllama gave no reason"
            raise ContextError(f"no context of {n_ctx} KV cells could be made: {why}")
        return cls(model, pointer)

    def close(self) -> None:
        """``llama_free``. Closing twice is harmless."""
        if self.pointer is not None:
            self.library.lib.llama_free(self.pointer)
            self.pointer = self.memory = None
            self.address = 0

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """``llama_memory_seq_rm``: forgets positions [p0, p1) of a sequence; -1 leaves an end open.

        False where this kind of memory cannot forget a part (a whole sequence always goes). To cut
        off an end use `cut`, to forget everything `clear`.
        """
        return bool(self.library.lib.llama_memory_seq_rm(self.memory, seq, p0, p1))

    def cut(self, seq: int, n_kept: int, last: int | None = None) -> bool:
        """Forget all but the first ``n_kept`` positions of a sequence, or else the whole of it.

        ``last``: position of the last cell that stays, where that is not ``n_kept - 1``.

        False where the whole had to go. A recurrent state cannot go back. Where libllama keeps
        earlier ones (``n_rs_seq``), it says true even if the last batch wrote none, or was given
        up. Of a sliding window the positions before ``n_kept`` may be gone already
        (``llama_memory_seq_rm`` says true then, so ``llama_memory_seq_pos_min`` is looked at).
        """
        lib = self.library.lib
        window = int(lib.llama_model_n_swa(self.model.pointer))
        kept = not lib.llama_n_rs_seq(self.pointer)
        last = n_kept - 1 if last is None else last
        kept = kept and self.seq_rm(seq, n_kept, -1) and self.seq_pos_max(seq) == last
        if kept and window and n_kept:
            kept = int(lib.llama_memory_seq_pos_min(self.memory, seq)) <= max(n_kept - window, 0)
        if not kept:
            self.seq_rm(seq)
        return kept

    def clear(self, data: bool = False) -> None:
        """``llama_memory_clear``: forgets all sequences; ``data``: what the cells hold, too.

        (``llama_memory_seq_rm`` of all sequences is refused by recurrent memory.)
        """
        self.library.lib.llama_memory_clear(self.memory, data)

    def seq_pos_max(self, seq: int) -> int:
        """The last position held for a sequence, or -1 (``llama_memory_seq_pos_max``)."""
        return int(self.library.lib.llama_memory_seq_pos_max(self.memory, seq))

    def seq_cp(self, source: int, target: int, p0: int = -1, p1: int = -1) -> None:
        """``llama_memory_seq_cp``: `target` gets positions [p0, p1) of `source` too.

        In a unified cache both then hold the same cells; no data moves.
        """
        self.library.lib.llama_memory_seq_cp(self.memory, source, target, p0, p1)

    def seq_add(self, seq: int, p0: int, p1: int, more: int) -> None:
        """``llama_memory_seq_add``: moves positions [p0, p1) of a sequence by ``more``.

        -1 leaves an end open.  The keys follow in front of the next decode.
        """
        self.library.lib.llama_memory_seq_add(self.memory, seq, p0, p1, more)

    def state_seq_size(self, seq: int, partial: bool = False) -> int:
        """Bytes that `state_seq_get` needs for a sequence (``llama_state_seq_get_size_ext``)."""
        flags = self._flags(partial)
        return int(self.library.lib.llama_state_seq_get_size_ext(self.pointer, seq, flags))

    def _flags(self, partial: bool) -> int:
        lib = self.library.lib
        return int(lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else 0)

    def state_seq_get(self, seq: int, room: Any, partial: bool = False) -> int:
        """``llama_state_seq_get_data_ext``: copies a sequence's cells, with positions, into `room`.

        `room` is a writable buffer of bytes (a numpy uint8 array, say), owned by the caller.
        With `partial` only what cannot be cut is copied: a recurrent state, or the cells of a
        sliding window. Returns the bytes written, or 0 where the room is too small. Waits for a
        decode in flight; releases the GIL while it copies.
        """
        lib, ffi = self.library.lib, self.library.ffi
        where = ffi.from_buffer("uint8_t[]", room, require_writable=True)
        flags = self._flags(partial)
        return int(lib.llama_state_seq_get_data_ext(self.pointer, where, len(where), seq, flags))

    def state_seq_set(
        self, seq: int, data: Any, size: int | None = None, partial: bool = False
    ) -> int:
        """``llama_state_seq_set_data_ext``: replaces a sequence by what `state_seq_get` wrote.

        `data` is a buffer of bytes, of which the first `size` count (all if None). It may come from
        another context of the same model, KV types and V layout. Takes free cells, wherever they
        lie. Returns the bytes read, or 0 where there are too few cells or the state does not fit
        this context; the sequence is empty then. With `partial` only what cannot be cut is
        replaced, and positions beyond are left to `seq_rm`. Releases the GIL while it copies.
        """
        lib, ffi = self.library.lib, self.library.ffi
        where = ffi.from_buffer("uint8_t[]", data)
        size = len(where) if size is None else min(size, len(where))
        flags = self._flags(partial)
        return int(lib.llama_state_seq_set_data_ext(self.pointer, where, size, seq, flags))

    def set_abort_callback(self, address: int, data: int) -> None:
        """``llama_set_abort_callback``: gives up a decode when ``bool f(void *data)`` says true.

        `address` is that C function's, 0 for none. It is asked after every node of the graph, in
        the thread that decodes and without the GIL. `address` and `data` are borrowed until the
        next call or `close`. ``llama_decode`` then returns 2 and has forgotten the cells of the
        part of the batch that was running. Only the processor backend looks at it.
        """
        lib, ffi = self.library.lib, self.library.ffi
        function = ffi.cast("ggml_abort_callback", address)
        lib.llama_set_abort_callback(self.pointer, function, ffi.cast("void *", data))

    def synchronize(self) -> None:
        """``llama_synchronize``: waits until what was decoded is there; releases the GIL."""
        self.library.lib.llama_synchronize(self.pointer)

    def set_threads(self, n_threads: int, n_threads_batch: int | None = None) -> None:
        """``llama_set_n_threads``: for single tokens, and for batches (the same if None)."""
        batch = n_threads if n_threads_batch is None else n_threads_batch
        self.library.lib.llama_set_n_threads(self.pointer, n_threads, batch)


def kv_type(library: Library, name: str) -> int:
    """The ``enum ggml_type`` called `name` by ``ggml_type_name``. Raises `ContextError`."""
    lib = library.lib
    for number in range(lib.GGML_TYPE_COUNT):
        if lib.ggml_blck_size(number) and library.text(lib.ggml_type_name(number)) == name:
            return number
    raise ContextError(f"there is no KV type {name!r}; take f16, q8_0, q5_1, q5_0 or q4_0")


def _flash_attention(lib: Any, wanted: bool | None) -> int:
    if wanted is None:
        return lib.LLAMA_FLASH_ATTN_TYPE_AUTO
    return lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if wanted else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED


def devices(library: Library) -> list[dict[str, Any]]:
    """Return the devices that models can run on, by ``ggml_backend_dev_get``.

    Each entry has ``name``, ``description``, ``type`` (``cpu``, ``gpu``, ``igpu``, ``accel``),
    ``memory_free`` and ``memory_total`` in bytes (0 where the backend does not say).
    """
    lib, ffi = library.lib, library.ffi
    kinds = {
        getattr(lib, f"GGML_BACKEND_DEVICE_TYPE_{name}"): name.lower()
        for name in ("CPU", "GPU", "IGPU", "ACCEL")
    }
    found = []
    for index in range(lib.ggml_backend_dev_count()):
        device = lib.ggml_backend_dev_get(index)
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        lib.ggml_backend_dev_memory(device, free, total)
        found.append(
            {
                "name": library.text(lib.ggml_backend_dev_name(device)),
                "description": library.text(lib.ggml_backend_dev_description(device)),
                "type": kinds.get(lib.ggml_backend_dev_type(device), "other"),
                "memory_free": int(free[0]),
                "memory_total": int(total[0]),
            }
        )
    return found
