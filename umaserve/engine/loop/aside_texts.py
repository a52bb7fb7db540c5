"""Texts for the lane beside the requests: texts to embed, prompts whose tokens are rated."""

from __future__ import annotations

from umaserve.engine.admission.admission import Admission
from umaserve.engine.aside.jobs import EmbedJob, PromptJob, fitting
from umaserve.engine.aside.lane import AsideLane
from umaserve.engine.model.loaded import Setup
from umaserve.engine.prefixes.prefixes import Prefixes
from umaserve.llama import Context
from umaserve.wire import messages as m


class AsideTexts:
    """For the loop's thread."""

    def __init__(
        self, setup: Setup, admission: Admission, lane: AsideLane, prefixes: Prefixes
    ) -> None:
        self._loaded, self._table, self._control = setup.loaded, setup.table, setup.control
        self._admission, self._lane, self._prefixes = admission, lane, prefixes
        self._way = setup.loaded.pooling
        self._forgotten: set[int] = set()  # refs of texts that are being tokenised
        admission.on_embed, admission.on_prompt = self._embed, self._rate

    def _embed(self, message: m.Embed, texts: list[list[int]], error: str) -> None:
        ref = message.ref
        if ref in self._forgotten:
            self._forgotten.discard(ref)
            return
        tokens = texts[0] if texts else []
        code, n_tokens = "E_PROTO_003", len(tokens)
        most = min(self._loaded.n_positions, self._loaded.n_ctx)
        if not error:
            fits = fitting(tokens, self._loaded.n_vocab, most, int(message.truncate))
            tokens, code, error = fits
        if error:
            told = m.Embedded(ref, n_tokens=n_tokens, most=most, code=code, error=error)
            self._control.send(told)
            return
        n_embd, send = self._loaded.model.n_embd, self._control.send
        self._lane.put(EmbedJob(ref, tokens, self._way, n_embd, send))

    def forget(self, ref: int) -> None:
        """Nobody waits for this vector any more."""
        found = self._lane.drop(lambda job: isinstance(job, EmbedJob) and job.ref == ref)
        if not self._admission.is_tokenizing:
            self._forgotten.clear()
        elif found is None:
            self._forgotten.add(ref)

    def _rate(self, submit: m.Submit, prompt: list[int]) -> None:
        def keep(context: Context) -> bool:
            if submit.max_tokens == m.NO_TOKENS or submit.deterministic:
                return False
            return self._prefixes.bring(submit.slot, context, len(prompt) - 1)

        def begin() -> None:
            self._admission.begin(submit)
            self._control.wake()

        def refuse(code: str, text: str) -> None:
            self._admission.reject(submit, code, text)

        self._lane.put(PromptJob(submit, prompt, self._control.send, keep, begin, refuse))

    def cancel(self, serial: int) -> bool:
        """Whether a request was here that is to end."""
        job = self._lane.drop(
            lambda job: isinstance(job, PromptJob) and job.submit.serial == serial
        )
        if not isinstance(job, PromptJob):
            return False
        self._table.in_tick[job.slot] = 0
        self._admission.end_empty(job.submit)
        return True
