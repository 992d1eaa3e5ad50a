"""Triton kernels of a decoding step against the reference; as a script, in Triton's interpreter on the CPU."""

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch

from saccade.config.load import validate
from saccade.data.tokenization.tokenizers import END
from saccade.kernels.next_token import DecodingConstraints, TopTokens, select_top_tokens
from saccade.kernels.triton import linear as fast_linear
from saccade.kernels.triton import step as fast_step
from saccade.layers.attention.static_cache import StaticSizes, StaticState
from saccade.model.build.model import build
from saccade.predict.engines.static_search import SearchHistory, StaticSearch, advance, advance_fast

V, ROOM, SOURCE = 37, 70, 6
CLOSE = {torch.float32: 2e-4, torch.bfloat16: 0.15}
GPT = {"norm": "pre", "activation": "gelu-tanh"}
CASES = [  # rows, beams, the stack, positions
    (1, 1, {}, "sinusoidal"),
    (1, 1, GPT | {"norm_kind": "rms", "bias": False, "gated": True, "window": 1}, "rotary"),
    (3, 1, GPT, "learned"),
    (6, 3, {"gated": True, "activation": "silu"}, "sinusoidal"),
    (4, 2, GPT | {"norm_kind": "rms", "bias": False, "window": 1}, "rotary"),
]


def build_writer(stack, positions, dtype, device):
    stack = {"layers": 1, "dim": 40, "heads": 2, "ff": 20, **stack}
    part = {"stack": stack, "positions": {"kind": positions}}
    recipe = validate({"reader": part, "writer": {**part, "tie": "none"}, "data": {"max_length": 64}}, origin="test")
    writer = build(recipe, source_size=V, target_size=V).writer
    for parameter in writer.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.4)  # ones and zeros would hide mistakes
    return writer.to(device, dtype).eval()


def build_states(writer, rows, beams, *, dtype, device):
    """Return two static states with the same contents."""
    memory = torch.randn(rows // beams, SOURCE - 1, writer.stack.dim, dtype=dtype, device=device)
    mask = torch.rand(rows // beams, SOURCE - 1, device=device) > 0.3
    mask[0] = False  # nothing to attend to
    seen = [block.cross.project_memory(memory) for block in writer.stack.blocks]
    made = [writer.stack.start_static(StaticSizes(rows, beams, ROOM, SOURCE)) for _ in range(2)]
    for state in made:
        state.reset(beams)
        state.load_memory(seen, mask)
    return made


@torch.no_grad()
def assert_same_steps(rows, beams, stack, positions, *, dtype=torch.float32, device="cpu", steps=3):
    """Compare stack and head step by step; beams continue random parents."""
    torch.manual_seed(0)
    writer = build_writer(stack, positions, dtype, device)
    weights = writer.stack.describe_step()
    fast_step.check_weights(weights)
    plain, fast = build_states(writer, rows, beams, dtype=dtype, device=device)
    where = writer.embedding.positions
    table = None if where is None else where(torch.arange(ROOM, device=device)[None])[0].to(dtype).contiguous()
    for step in range(steps):
        ids = torch.randint(4, V, (rows,), device=device)
        expected = writer.stack.step_static(writer.embedding(ids[:, None], plain.lengths[:, None]), plain)[:, 0]
        x = fast_step.embed_tokens(ids, writer.embedding.tokens.weight, writer.embedding.scale, table, fast.lengths)
        x = fast_step.run_stack(weights, x, fast)
        got = fast_linear.normalize_rows(x)
        torch.testing.assert_close(got, expected, atol=CLOSE[dtype], rtol=CLOSE[dtype])
        assert_same_best(writer, x, got, rows // beams, step)
        parents = (torch.arange(rows, device=device) // beams) * beams + torch.randint(beams, (rows,), device=device)
        for state in (plain, fast):
            state.lengths.add_(1)
            if beams > 1:
                state.follow_parents(parents)
    for one, other in zip(plain.self_caches, fast.self_caches, strict=True):
        torch.testing.assert_close(one.keys, other.keys, atol=CLOSE[dtype], rtol=CLOSE[dtype])


def assert_same_best(writer, x, hidden, sentences, step):
    """Compare the best tokens of each row under all rules: no END yet, a forced token, a length limit."""
    device = hidden.device
    limits = torch.tensor([9, 2, 1, 5], device=device).repeat(sentences)[:sentences]
    prefix = torch.full((ROOM,), -1, device=device)
    prefix[1] = 7
    never = torch.zeros(V, dtype=torch.int8, device=device)
    never[:2] = 1
    rules = DecodingConstraints(
        torch.tensor([step], device=device), torch.tensor([1], device=device), limits, prefix, never, END
    )
    logits = hidden.float() @ writer.output.weight.float().T
    for count in (1, 3):
        expected, got = (
            select_top_tokens(logits, rules, count),
            fast_step.select_next_tokens(x, writer.output.weight, rules, count),
        )
        near = 1e-3 if hidden.dtype == torch.float32 else 5e-2
        torch.testing.assert_close(got.log_totals, expected.log_totals, atol=near, rtol=near)
        torch.testing.assert_close(got.values, expected.values, atol=near, rtol=near)
        if hidden.dtype == torch.float32:
            allowed = expected.values > -torch.inf
            assert torch.equal(got.tokens[allowed], expected.tokens[allowed])


def build_search(sentences, beams, device):
    def new(*shape, dtype=torch.long):
        return torch.zeros(shape, dtype=dtype, device=device)

    rows = sentences * beams
    slots = torch.arange(rows, device=device)[:, None].repeat(1, ROOM if beams > 1 else 1).int()
    state = StaticState((), (), new(1, 1, dtype=torch.bool), new(1), new(rows), slots, new(rows), new(8).int())
    search = StaticSearch(
        state=state,
        rules=DecodingConstraints(
            new(1), new(1), torch.arange(sentences, device=device) + 2, new(ROOM), new(V).char(), END
        ),
        tokens=new(rows),
        sentences=torch.arange(sentences, device=device).flip(0),
        done=new(sentences, dtype=torch.bool),
        scores=new(sentences, beams).float(),
        pool=new(sentences, beams).float() - torch.inf,
        n_best_index=new(1) + min(1, beams - 1),
        penalties=(torch.arange(ROOM + 3, device=device) / 6 + 1) ** 0.6,
        remaining=new(1),
        history=SearchHistory(*(new(ROOM, sentences, beams).to(t) for t in (torch.int32, torch.int16, torch.float32))),
    )
    search.scores[:, 1:] = -torch.inf
    search.done[-1] = True
    return search


def assert_same_bookkeeping(sentences, beams, *, device="cpu", steps=5):
    """Compare searches that continue from random candidates."""
    plain, fast = (build_search(sentences, beams, device) for _ in range(2))
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        values = torch.randn(sentences * beams, beams, generator=generator).sort(1, descending=True).values
        tokens = torch.rand(sentences * beams, 7, generator=generator).argsort(1)[:, :beams] + 1
        totals = torch.rand(sentences * beams, generator=generator) + 2
        best = TopTokens(*(part.to(device) for part in (values, tokens, totals)))
        advance(plain, best)
        advance_fast(fast, best)
        pairs = zip(
            [*plain.list_mutable_tensors(), *vars(plain.history).values()],
            [*fast.list_mutable_tensors(), *vars(fast.history).values()],
        )
        for expected, got in pairs:
            torch.testing.assert_close(got, expected)


def compare_splits(device="cpu"):
    """Compare split reductions and attention, as on a device with many multiprocessors."""
    many, fast_linear.count_multiprocessors = fast_linear.count_multiprocessors, lambda device: 256
    try:
        assert_same_steps(3, 1, GPT | {"ff": 300}, "sinusoidal", device=device, steps=2)
        assert_same_steps(1, 1, {}, "rotary", device=device, steps=2)
    finally:
        fast_linear.count_multiprocessors = many


if __name__ == "__main__":
    for case in CASES:
        assert_same_steps(*case, steps=2)
    for sizes in ((1, 1), (5, 1), (3, 2), (2, 4)):
        assert_same_bookkeeping(*sizes)
    compare_splits()
    print("the kernels agree")
