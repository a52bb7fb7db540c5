"""Start of drafting with an engine, and messages to people about a draft model."""

from __future__ import annotations

from umaserve.drafts.ring import remember
from umaserve.drafts.wanted import MOST_EACH
from umaserve.engine.model.abilities import why_no_drafts
from umaserve.engine.model.loaded import Setup
from umaserve.engine.native.calls import Native
from umaserve.wire import messages as m

from .model import try_out
from .records import MODEL_ALONE, NEVER, WAYS, Drafts
from .speaker import Speaker

TRIED_CHUNK, TRIED_TIMES = 32, 4  # tokens that a draft model computes at start, and how often


def allocate_drafts(setup: Setup) -> Drafts:
    """Room for drafted tokens; for none where the memory of this model cannot go back.

    A recurrent state goes back as far as libllama keeps earlier ones.  These are whole where one
    ubatch computed all rows of the tick, which then have equally many tokens.
    """
    start, loaded, table = setup.start, setup.loaded, setup.table
    spec = table.spec
    why = why_no_drafts(loaded.library.lib, loaded.model.pointer, loaded.no_way_back)
    way = NEVER if why else WAYS[start.speculate]
    alone = start.speculate in MODEL_ALONE
    drafts = Drafts.allocate(spec.n_slots, spec.n_ctx, way, only_model=alone)
    if loaded.snapshots:
        terms = drafts.wanted.terms
        terms.most_each, terms.alike = min(loaded.snapshots, MOST_EACH), 1
    if way:  # have what is compiled at hand before anybody waits for it
        remember(drafts.ring, 0, table.tokens[0], 0, 0)
    return drafts


def open_speaker(setup: Setup, native: Native) -> Speaker:
    """Make the `Speaker` that the ticks ask for drafts; a draft model, if any, is measured."""
    spec = setup.table.spec
    speaker = Speaker.of(setup.loaded.draft, spec.n_slots, spec.n_ctx)
    try_out(speaker, native, TRIED_CHUNK, TRIED_TIMES)
    tell_of_failure(speaker, setup)
    return speaker


def tell_of_failure(speaker: Speaker, setup: Setup) -> None:
    """A draft model that failed is asked no more, and a person hears of it, once."""
    reading = speaker.reading
    if reading.failed and not reading.told:
        reading.told = 1
        why = setup.loaded.library_log_tail() or "llama_decode reported an error"
        who = setup.start.draft_model or f"{setup.start.model_path} with its own heads"
        text = f"{who} drafts nothing any more: {why}"
        setup.control.send(m.Log("warn", text))
