"""The demo model's network and its training loop (PyTorch).

The network is llama's: RMSNorm, grouped-query attention with rotary positions, SwiGLU, tied
embeddings. Rotary pairs are neighbours (2i, 2i+1), the layout llama.cpp uses for its ``llama``
architecture (``LLAMA_ROPE_TYPE_NORM``), so that the weights go into the GGUF unpermuted.

Long: the model's forward and backward pass, which are read side by side.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """The model's hyperparameters; defaults are the bundled model's."""

    n_vocab: int = 5120
    n_embd: int = 384
    n_layer: int = 8
    n_head: int = 6
    n_head_kv: int = 2
    n_ff: int = 1024
    n_ctx: int = 8192
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head


SHAPES = {
    "demo": Shape(),
    # For trying the whole pipeline out on a CPU in a minute.
    "tiny": Shape(n_embd=64, n_layer=2, n_head=2, n_head_kv=1, n_ff=192, n_ctx=512),
}


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return (
        torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        .flatten(-2)
        .to(x.dtype)
    )


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.n_head_kv * shape.head_dim
        self.attn_norm = nn.RMSNorm(shape.n_embd, eps=shape.norm_eps)
        self.attn_q = nn.Linear(shape.n_embd, shape.n_embd, bias=False)
        self.attn_k = nn.Linear(shape.n_embd, kv, bias=False)
        self.attn_v = nn.Linear(shape.n_embd, kv, bias=False)
        self.attn_output = nn.Linear(shape.n_embd, shape.n_embd, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.n_embd, eps=shape.norm_eps)
        self.ffn_gate = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.ffn_up = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.ffn_down = nn.Linear(shape.n_ff, shape.n_embd, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        dim, groups = self.shape.head_dim, self.shape.n_head // self.shape.n_head_kv
        h = self.attn_norm(x)
        q = self.attn_q(h).view(rows, length, -1, dim).transpose(1, 2)
        k = self.attn_k(h).view(rows, length, -1, dim).transpose(1, 2)
        v = self.attn_v(h).view(rows, length, -1, dim).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(out.transpose(1, 2).reshape(rows, length, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class DemoNet(nn.Module):
    """Token ids ``[rows, length]`` to logits ``[rows, length, n_vocab]``."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.RMSNorm(shape.n_embd, eps=shape.norm_eps)
        inverse = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angle = torch.outer(torch.arange(shape.n_ctx).float(), inverse)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * shape.n_layer) if deep else 1.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token_embd(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blk:
            x = block(x, cos, sin)
        return F.linear(self.output_norm(x), self.token_embd.weight)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy (nats a token) of predicting ``tokens[:, 1:]``."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Stream:
    """One kind of training text as token ids, from which rows are drawn.

    A row starts at a document's first token or anywhere: the first teaches how text that begins at
    position 0 goes on, which is what a prompt without a begin-of-text token looks like.
    :meth:`shuffle` reorders the documents, so that which follows which is not learnt.
    """

    def __init__(
        self, path: Path, longest: int, end_of_text: int, at_start: float, device: torch.device
    ) -> None:
        tokens = np.fromfile(path, dtype=np.uint16).astype(np.int32)
        ends = np.flatnonzero(tokens == end_of_text) + 1
        self._documents = np.split(tokens, ends[:-1])
        self._longest, self._device, self.at_start = longest, device, at_start
        self._place(np.arange(len(self._documents)))

    def _place(self, order: np.ndarray) -> None:
        tokens = np.concatenate([self._documents[i] for i in order])
        lengths = np.array([len(self._documents[i]) for i in order])
        self.length = len(tokens)
        self.starts = torch.from_numpy(np.cumsum(lengths) - lengths).to(self._device)
        # Rows that run over the end go on at the beginning.
        self.tokens = torch.from_numpy(np.resize(tokens, len(tokens) + self._longest + 1)).to(
            self._device
        )

    def shuffle(self, draw: np.random.Generator) -> None:
        self._place(draw.permutation(len(self._documents)))

    def rows(self, count: int, length: int, generator: torch.Generator) -> torch.Tensor:
        device = self.tokens.device
        anywhere = torch.randint(self.length, (count,), generator=generator, device=device)
        pick = torch.randint(len(self.starts), (count,), generator=generator, device=device)
        at_start = torch.rand(count, generator=generator, device=device) < self.at_start
        at = torch.where(at_start, self.starts[pick], anywhere)
        return self.tokens[at[:, None] + torch.arange(length + 1, device=device)].long()


@dataclass(frozen=True)
class Plan:
    """How to train: everything that decides the result besides the data and the shape."""

    steps: int = 6000
    batch_tokens: int = 131072
    # (row length, share of the steps), in order: long rows last, when the weights know the text.
    phases: tuple[tuple[int, float], ...] = ((1024, 0.78), (4096, 0.12), (8192, 0.10))
    # (kind of text, share of the rows, share of those that start where a document does)
    mixture: tuple[tuple[str, float, float], ...] = (
        ("code", 0.29, 0.3),
        ("snippets", 0.13, 0.6),
        ("chat", 0.42, 1.0),
        ("fim", 0.08, 1.0),
        ("prose", 0.08, 0.5),
    )
    # steps between two shuffles of the documents
    shuffle_every: int = 50
    learning_rate: float = 3e-3
    warmup: int = 200
    weight_decay: float = 0.05
    optimizer: str = "muon"
    seed: int = 20

    def row_length(self, step: int) -> int:
        edge = 0.0
        for length, share in self.phases:
            edge += share * self.steps
            if step < edge:
                return length
        return self.phases[-1][0]

    def rate(self, step: int) -> float:
        """Warm-up, then a cosine to 2 % of the peak; as a share of the peak."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _optimizers(net: DemoNet, plan: Plan, fused: bool) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in net.named_parameters() if p.dim() == 2 and n.startswith("blk.")]
    rest = [p for n, p in net.named_parameters() if p.dim() == 2 and not n.startswith("blk.")]
    norms = [p for p in net.parameters() if p.dim() == 1]
    groups = [
        {"params": rest, "weight_decay": plan.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    out: list[torch.optim.Optimizer] = []
    if plan.optimizer == "muon":
        if not hasattr(torch.optim, "Muon"):
            raise SystemExit(
                f"torch {torch.__version__} has no Muon; install torch 2.9 or later, "
                "or train with --optimizer adamw"
            )
        muon = torch.optim.Muon(
            matrices,
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        out.append(muon)
    else:
        groups.insert(0, {"params": matrices, "weight_decay": plan.weight_decay})
    out.append(
        torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), eps=1e-10, fused=fused)
    )
    return out


def train(
    work: Path, shape: Shape, plan: Plan, *, max_minutes: float, device_name: str
) -> tuple[DemoNet, dict]:
    """Train on the streams in *work*; returns the network (on the CPU) and a record of the run.

    ``max_minutes`` stops early (0: never) and the record says at which step; the rate's schedule
    assumes the full number of steps.

    Long: a training step is one piece of arithmetic.
    """
    device = torch.device(device_name)
    cuda = device.type == "cuda"
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    generator = torch.Generator(device=device).manual_seed(plan.seed)
    draw = np.random.default_rng(plan.seed)
    end_of_text = json.loads((work / "corpus.json").read_text())["special_tokens"]["<|endoftext|>"]
    longest = max(length for length, _ in plan.phases)
    if longest > shape.n_ctx:
        raise SystemExit(
            f"rows of {longest} tokens do not fit the context of {shape.n_ctx}; change --phases"
        )
    streams = {
        name: Stream(work / f"{name}.bin", longest, end_of_text, at_start, device)
        for name, _, at_start in plan.mixture
    }
    net = DemoNet(shape).to(device)
    n_params = sum(p.numel() for p in net.parameters())
    print(
        f"{n_params:,} parameters on {device}, {plan.steps} steps of {plan.batch_tokens:,} tokens",
        flush=True,
    )
    optimizers = _optimizers(net, plan, cuda)
    loss_of = torch.compile(net.loss, dynamic=False) if cuda else net.loss
    began = time.monotonic()
    history: list[tuple[int, float]] = []
    window: list[torch.Tensor] = []
    seen = 0
    step = 0
    mark_time, mark_seen = began, 0
    for step in range(plan.steps):
        if step % plan.shuffle_every == 0:
            for stream in streams.values():
                stream.shuffle(draw)
        length = plan.row_length(step)
        rows = max(1, plan.batch_tokens // length)
        counts = draw.multinomial(rows, [share for _, share, _ in plan.mixture]).tolist()
        batch = torch.cat(
            [
                streams[name].rows(n, length, generator)
                for (name, _, _), n in zip(plan.mixture, counts, strict=True)
                if n
            ]
        )
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate * plan.rate(step)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen += rows * length
        window.append(loss.detach())
        if (step + 1) % 100 == 0 or step + 1 == plan.steps or step in (0, 20):
            mean = torch.stack(window).mean().item()  # waits for the device
            window.clear()
            now = time.monotonic()
            rate = (seen - mark_seen) / (now - mark_time)
            mark_time, mark_seen = now, seen
            left = (plan.steps - step - 1) * plan.batch_tokens / rate
            history.append((step + 1, round(mean, 4)))
            print(
                f"step {step + 1}/{plan.steps}  loss {mean:.4f}  {rate / 1e6:.3f} Mtok/s  "
                f"rows of {length}  "
                f"{now - began:.0f} s, about {left:.0f} s left",
                flush=True,
            )
            if not math.isfinite(mean):
                raise SystemExit("the loss is not finite; lower --learning-rate")
        if max_minutes and time.monotonic() - began > max_minutes * 60:
            print(f"stopped at step {step + 1}: --max-minutes {max_minutes} is over", flush=True)
            break
    evals = {}
    net.eval()
    check = torch.Generator(device=device).manual_seed(plan.seed + 1)
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        for name, stream in streams.items():
            length = plan.phases[0][0]
            evals[name] = round(
                net.loss(stream.rows(max(1, 65536 // length) if cuda else 4, length, check)).item(),
                4,
            )
    print(f"loss by kind of text: {evals}", flush=True)
    record = {
        "shape": asdict(shape),
        "plan": asdict(plan),
        "parameters": n_params,
        "steps_done": step + 1,
        "tokens_seen": seen,
        "final_loss": history[-1][1] if history else None,
        "loss_by_text": evals,
        "loss_history": history[:: max(1, len(history) // 40)],
        "seconds": round(time.monotonic() - began, 1),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "torch": torch.__version__,
    }
    return net.float().cpu(), record
