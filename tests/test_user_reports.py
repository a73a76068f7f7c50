"""One test for each thing that users of attention backends for AMD GPUs ran into, by the report's number."""

import importlib.metadata
import math
import mmap
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomllib
import torch

import liteattention_rocm
from attention_cases import ROUNDINGS, Case, GuardedOut, bits, same_bits
from liteattention_rocm import _C, dispatch, reference, runtime, simulator

pytestmark = pytest.mark.usefixtures("dense_kernel")

ROOT = Path(__file__).parent.parent
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def restrided(tensor, strides, offset=0):
    """The same values with other strides, in memory that is NaN elsewhere."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    memory = torch.full((offset + last + 1 + 8,), math.nan, dtype=tensor.dtype)
    view = memory.as_strided(tensor.shape, strides, offset)
    return view.copy_(tensor)


def test_row_01_strides_of_every_input_are_honoured():
    """[1, 16, 62, 128] in strange strides gives the bits of contiguous input, copied or not."""
    case = Case(62, 62, layout="bhsd", batch=1, heads=16, kv_heads=16)
    contiguous = [t.contiguous() for t in case.inputs()]
    expected = liteattention_rocm.attention(*contiguous, layout="bhsd", return_lse=True)
    head, row = 62 * 128, 128
    layouts = {
        "transposed": (0, row, 16 * row, 1),
        "padded rows": (0, 62 * 136, 136, 1),
        "padded heads": (0, head + 64, row, 1),
        "strides that are no multiple of 8": (0, 62 * 129, 129, 1),
        "rows far apart": (0, row, 16 * row * 3, 1),
        "last dimension not contiguous": (0, head * 2, row * 2, 2),
        "last dimension outermost": (0, 62, 1, 16 * 62),
    }
    for what, strides in layouts.items():
        for index in range(3):
            for offset in (0, 8, 3):
                changed = list(contiguous)
                changed[index] = restrided(contiguous[index], strides, offset)
                out, lse = liteattention_rocm.attention(*changed, layout="bhsd", return_lse=True)
                assert same_bits(out, expected[0]), (what, "qkv"[index], offset)
                assert torch.equal(lse, expected[1]), (what, "qkv"[index], offset)


def test_row_01_expanded_inputs():
    """One kv head or one row for all, by a stride of 0, gives the bits of the repeated tensor."""
    q, k, v = (t.contiguous() for t in Case(70, 130, heads=4, kv_heads=4).inputs())
    for dim in (0, 1, 2):
        for index in range(3):
            changed = [q, k, v]
            changed[index] = changed[index].narrow(dim, 0, 1).expand_as(changed[index])
            expected = liteattention_rocm.attention(*(t.contiguous() for t in changed))
            assert same_bits(liteattention_rocm.attention(*changed), expected), (dim, "qkv"[index])


def sparse_memory(elements):
    """bfloat16 in address space of which only touched pages exist."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, 2 * elements, flags=flags), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "strides",
    [(0, 128, 2**23, 1), (0, 2**31 + 64, 128, 1), (2**32 + 8, 2**31 + 8, 256, 1)],
    ids=["rows", "heads", "batches"],
)
def test_row_02_offsets_beyond_32_bits(strides):
    """Elements beyond 2^31 and bytes beyond 2^32: 300 rows of the widest stride that runs without a copy, and
    heads and batch entries that far apart."""
    batch = 2 if strides[0] else 1
    case = Case(300, 290, layout="bhsd", batch=batch, heads=2, kv_heads=2)
    originals = [t.contiguous() for t in case.inputs()]
    far = []
    for tensor in (*originals, torch.zeros_like(originals[0])):
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
        assert last > 2**31
        far.append(sparse_memory(last + 1).as_strided(tensor.shape, strides).copy_(tensor))
    q, k, v, out = far
    calls_without_copy = []

    def watched(*arguments):
        bound = _C.BoundForward(*arguments)

        def launch(*addresses):
            calls_without_copy.append({*addresses[:4]} == {t.data_ptr() for t in far})
            bound.launch(*addresses)

        return SimpleNamespace(launch=launch, workspace_bytes=bound.workspace_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "_C", SimpleNamespace(**{**vars(_C), "BoundForward": watched}))
        _, lse = liteattention_rocm.attention(q, k, v, out=out, layout="bhsd", return_lse=True)
    assert calls_without_copy == [True]
    expected, expected_lse = liteattention_rocm.attention(*originals, layout="bhsd", return_lse=True)
    assert same_bits(out, expected)
    assert torch.equal(lse, expected_lse)


def test_row_03_strides_of_out_are_honoured():
    q, k, v = Case(70, 40).inputs()
    expected = liteattention_rocm.attention(q, k, v)
    batch, rows, heads, dim = expected.shape
    strides = {
        "heads first": (heads * rows * dim, dim, rows * dim, 1),
        "padded rows": (rows * heads * 136, heads * 136, 136, 1),
        "batch innermost": (dim, batch * heads * dim, batch * dim, 1),
        "no multiple of 8": (rows * heads * 129, heads * 129, 129, 1),
        "last dimension not contiguous": (rows * heads * dim * 2, heads * dim * 2, dim * 2, 2),
        "last dimension outermost": (rows * heads, heads, 1, batch * rows * heads),
    }
    for what, stride in strides.items():
        for offset in (0, 3):
            last = sum((size - 1) * step for size, step in zip(expected.shape, stride, strict=True))
            memory = torch.full((offset + last + 9,), 7.0, dtype=torch.bfloat16)
            out = memory.as_strided(expected.shape, stride, offset)
            liteattention_rocm.attention(q, k, v, out=out)
            assert same_bits(out, expected), what
            out.fill_(7.0)
            assert (memory == 7.0).all(), what


@pytest.mark.parametrize(("seqlen_q", "seqlen_kv"), [(1, 1), (1, 2), (1, 300), (2, 1), (300, 1)])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_row_04_single_rows(seqlen_q, seqlen_kv, rounding):
    q, k, v = Case(seqlen_q, seqlen_kv, rounding).inputs()
    out, lse = liteattention_rocm.attention(q, k, v, rounding=rounding, return_lse=True)
    expected, expected_lse = reference.attention(q, k, v)
    if seqlen_kv == 1:
        assert same_bits(out, v.expand_as(out))
    # P and O, each at most one bfloat16 step off: 2^-8 rounded to nearest, 2^-7 truncated.
    step = 2**-7 if rounding == "rtz" else 2**-8
    assert (out.double() - expected).abs().max() <= 2 * step * v.double().abs().max()
    assert (lse.double() - expected_lse).abs().max() <= 5e-6


def test_row_05_empty_sequences():
    q, k, v = Case(4, 4).inputs()
    out, lse = liteattention_rocm.attention(q[:, :0], k, v, return_lse=True)
    assert out.shape == (2, 0, 3, 128)
    assert lse.shape == (2, 3, 0)
    with pytest.raises(ValueError, match=r"k must have at least one row \(seqlen_kv >= 1\), got 0"):
        liteattention_rocm.attention(q, k[:, :0], v[:, :0])


@pytest.mark.parametrize("seqlen_kv", [1, 2, 64, 65, 200])
def test_row_06_very_negative_logits(seqlen_kv):
    """Equal logits of −1e6 over V = 1 give exactly 1; a maximum that starts at −1e30 or −5e4 gave 0."""
    q = torch.full((1, 5, 2, 128), 62.5).bfloat16()
    k = torch.full((1, seqlen_kv, 2, 128), -125.0).bfloat16()
    v = torch.ones_like(k)
    out, lse = liteattention_rocm.attention(q, k, v, scale=1.0, return_lse=True)
    assert (out == 1).all()
    assert torch.allclose(lse, torch.full_like(lse, -1e6 + math.log(seqlen_kv)), rtol=1e-7, atol=0)
    # Lower still: −3e38, next to the lowest finite float.
    q, k = torch.full_like(q, 1e18), torch.full_like(k, -2.3e18)
    assert (liteattention_rocm.attention(q, k, v, scale=1.0) == 1).all()


def test_row_07_ones_stay_ones():
    """V = 1 gives exactly 1 for random q and k, whatever the length."""
    q, k, _ = Case(16, 300, batch=1, heads=2, kv_heads=2).inputs()
    v = torch.ones_like(k)
    for seqlen_kv in [*range(1, 140), 191, 192, 193, 255, 256, 257, 300]:
        out = liteattention_rocm.attention(q, k[:, :seqlen_kv], v[:, :seqlen_kv])
        assert (out == 1).all(), seqlen_kv


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("seqlen_q", [1, 31, 33, 62, 127, 129, 200])
def test_row_09_every_row_is_written_and_nothing_else(seqlen_q, layout):
    q, k, v = Case(seqlen_q, 62, layout=layout).inputs()
    out = GuardedOut(q.shape, gap=16)
    lse = torch.ops.liteattention_rocm.attention_out(q, k, v, out.tensor, layout=layout, return_lse=True)
    assert out.tensor.isfinite().all()
    assert lse.isfinite().all()
    out.check()


def test_row_10_the_current_stream_of_the_tensors_device(monkeypatch):
    """A ROCm launch goes to the stream that is current on its device, whatever stream that is."""
    bound, launches, asked = [], [], []
    call = SimpleNamespace(launch=lambda *arguments: launches.append(arguments), workspace_bytes=0)
    monkeypatch.setattr(
        runtime, "_C", SimpleNamespace(BoundForward=lambda *arguments: bound.append(arguments) or call)
    )
    rocm = dispatch.Hip(runtime.Target(5, 3, "gfx942", 304))
    monkeypatch.setattr(dispatch, "serving", lambda device: rocm)
    monkeypatch.setattr(runtime.verdicts, "refused", lambda where: {})  # would ask the device its name
    for stream in (0, 0x7F00DEADBEE0):
        monkeypatch.setattr(
            torch.cuda,
            "current_stream",
            lambda index, stream=stream: asked.append(index) or SimpleNamespace(cuda_stream=stream),
        )
        liteattention_rocm.attention(*Case(4, 4).inputs())
    assert asked == [3, 3]
    assert [arguments[:4] for arguments in bound] == [(5, 3, "gfx942", 304)]
    assert [arguments[-1] for arguments in launches] == [0, 0x7F00DEADBEE0]


def test_row_14_the_layout_of_lse():
    """[batch, heads, seqlen_q], natural logarithm, also where heads equals seqlen_q."""
    q, k, v = Case(5, 40, heads=5, kv_heads=5).inputs()
    _, lse = liteattention_rocm.attention(q, k, v, return_lse=True)
    assert lse.shape == (2, 5, 5) and lse.dtype == torch.float32
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / math.sqrt(128)
    assert (lse.double() - scores.exp().sum(-1).log()).abs().max() <= 5e-6


def test_row_15_batch_entries_are_independent():
    q, k, v = Case(100, 130, batch=4).inputs()
    out, lse = liteattention_rocm.attention(q, k, v, return_lse=True)
    order = [2, 0, 3, 1]
    permuted, permuted_lse = liteattention_rocm.attention(q[order], k[order], v[order], return_lse=True)
    assert same_bits(permuted, out[order])
    assert torch.equal(permuted_lse, lse[order])
    for index in range(4):
        entry = slice(index, index + 1)
        assert same_bits(liteattention_rocm.attention(q[entry], k[entry], v[entry]), out[entry])


@pytest.mark.parametrize("compute_units", [304, 80, 38, 20])
def test_row_16_any_number_of_compute_units(compute_units):
    """MI300X, MI308X and partition modes: the same bits, and a plan that covers every query row and head."""
    q, k, v = Case(400, 70).inputs()
    expected = liteattention_rocm.attention(q, k, v)
    try:
        simulator.set_option("compute_units", compute_units)
        assert runtime.target(q.device).compute_units == compute_units
        assert same_bits(liteattention_rocm.attention(q, k, v), expected)
    finally:
        simulator.set_option("compute_units", 304)
    plan = _C.plan(2, 3, 3, 400, 70, compute_units)
    assert tuple(plan["grid"]) == (4, 3, 2) and tuple(plan["block"]) == (256, 1, 1)
    # 1,216 equal blocks take as many turns as the units at hand need, of each 304's, and splitting gains.
    blocks, unsplit = 1216, _C.plan(1, 1216, 1216, 128, 640, compute_units, "forward", 1)
    at_full_size = _C.plan(1, 1216, 1216, 128, 640, 304, "forward", 1)["modelled_clocks"] / (blocks // 304)
    assert unsplit["modelled_clocks"] / at_full_size == pytest.approx(-(-blocks // compute_units), rel=0.05)
    assert unsplit["workgroups_per_compute_unit"] == -(-blocks // compute_units)
    few = [_C.plan(1, 40, 40, 384, 6400, units)["modelled_clocks"] for units in (304, 80, 38, 20)]
    assert few == sorted(few) and few[3] > 2 * few[1] > 4 * few[0]


@pytest.fixture
def rocm(monkeypatch):
    """A pretended ROCm device: what torch says of it, and what the host layer is asked to open."""

    def pretend(gcn_arch_name, hip="7.1", compute_units=304, name="AMD Instinct"):
        properties = SimpleNamespace(
            gcnArchName=gcn_arch_name, multi_processor_count=compute_units, name=name, major=9, minor=0
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        monkeypatch.setattr(torch.version, "hip", hip)
        opened = SimpleNamespace(**{**vars(_C), "open_hip": lambda path: ("opened", path)})
        monkeypatch.setattr(runtime, "_C", opened)
        runtime._rocm_target.cache_clear()
        runtime.has_code_object.cache_clear()

    yield pretend
    runtime._rocm_target.cache_clear()
    runtime.has_code_object.cache_clear()


@pytest.mark.parametrize(
    "spelling",
    ["gfx942", "gfx942:sramecc+:xnack-", "gfx942:xnack-", "amdgcn-amd-amdhsa--gfx942:sramecc+", "GFX942 "],
)
def test_row_17_every_spelling_of_the_architecture(rocm, spelling):
    rocm(spelling, compute_units=80)
    target = runtime.target(torch.device("cuda", 0))
    assert target == runtime.Target(("opened", ""), 0, "gfx942", 80)


@pytest.mark.parametrize("architecture", ["gfx90a:sramecc+:xnack-", "gfx950", "gfx1100", "gfx9420", "gfx94"])
def test_row_17_architectures_without_a_code_object(rocm, architecture):
    rocm(architecture)
    name = architecture.split(":")[0]
    with pytest.raises(
        RuntimeError, match=rf"architecture {name} has no code object here; supported are .*gfx942"
    ):
        runtime.target(torch.device("cuda", 0))


def test_row_17_no_code_object_for_nvidia(rocm):
    rocm("", hip=None, name="NVIDIA H100")
    with pytest.raises(RuntimeError, match=r"an NVIDIA device \(NVIDIA H100\); supported are .*gfx942"):
        runtime.target(torch.device("cuda", 0))


def one_changed(name, change):
    """A change of one of q, k and v."""
    return lambda *inputs: [change(t) if which == name else t for which, t in zip("qkv", inputs, strict=True)]


REFUSED = {
    "layout": (
        lambda q, k, v: (q.transpose(1, 2), k, v),
        ValueError,
        "the heads of k (3) must divide the heads of q (4)",
    ),
    "device of k": (
        one_changed("k", lambda t: t.to("meta")),
        ValueError,
        "k must be on the device of q (cpu), got meta",
    ),
    "device of v": (
        one_changed("v", lambda t: t.to("meta")),
        ValueError,
        "v must be on the device of q (cpu), got meta",
    ),
}
for _name in "qkv":
    for _dtype in (torch.float32, torch.float16, torch.int16):
        sentence = f"{_name} must have dtype torch.bfloat16, got {_dtype}"
        change = one_changed(_name, lambda t, dtype=_dtype: t.to(dtype))
        REFUSED[f"{_dtype} {_name}"] = (change, TypeError, sentence)
    REFUSED[f"head dim of {_name}"] = (
        one_changed(_name, lambda t: t[..., :64]),
        ValueError,
        f"{_name} must have head dim 128",
    )
    REFUSED[f"rank of {_name}"] = (
        one_changed(_name, lambda t: t[0]),
        ValueError,
        f"{_name} must have 4 dimensions",
    )


def test_row_18_an_out_that_is_refused(monkeypatch):
    monkeypatch.setattr(runtime, "_C", SimpleNamespace(open_hip=_C.open_hip))  # has no forward
    q, k, v = Case(4, 4).inputs()
    for out, error, sentence in (
        (q.float(), TypeError, "out must have dtype torch.bfloat16, got torch.float32"),
        (q[0], ValueError, "out must have shape (2, 4, 3, 128), got (4, 3, 128)"),
        (q.to("meta"), ValueError, "out must be on the device of q (cpu), got meta"),
        (q.clone()[..., :64], ValueError, "out must have shape (2, 4, 3, 128), got (2, 4, 3, 64)"),
    ):
        with pytest.raises(error, match=re.escape(sentence)):
            liteattention_rocm.attention(q, k, v, out=out)


@pytest.mark.parametrize(("change", "error", "sentence"), REFUSED.values(), ids=REFUSED)
def test_row_18_refused_before_launch(monkeypatch, change, error, sentence):
    monkeypatch.setattr(runtime, "_C", SimpleNamespace(open_hip=_C.open_hip))  # has no forward
    with pytest.raises(error, match=re.escape(sentence)):
        liteattention_rocm.attention(*change(*Case(4, 4).inputs()))


def test_row_19_text_encoders_are_refused_by_name():
    """Head dim 80 in float32: what a forced backend is handed, and must refuse for others to serve."""
    encoder = torch.zeros(1, 77, 16, 80)
    with pytest.raises(TypeError, match=r"q must have dtype torch\.bfloat16, got torch\.float32"):
        liteattention_rocm.attention(encoder, encoder, encoder)
    encoder = encoder.bfloat16()
    with pytest.raises(ValueError, match=r"q must have head dim 128 .* got 80"):
        liteattention_rocm.attention(encoder, encoder, encoder)


def test_row_24_the_install_needs_no_torch_and_no_rocm():
    """Nothing requires a torch, and the compiled module is linked with neither torch nor HIP."""
    from elftools.elf.elffile import ELFFile

    required = importlib.metadata.requires("liteattention_rocm") or []
    always = [requirement for requirement in required if "extra ==" not in requirement]
    sources = tomllib.loads((ROOT / "pyproject.toml").read_text())
    always += sources["project"]["dependencies"] + sources["build-system"]["requires"]
    assert not any(re.match(r"(torch|sglang|triton|amd|hip|rocm)", requirement) for requirement in always)
    for file in (ROOT / "CMakeLists.txt", *(ROOT / "cmake").iterdir()):
        assert not re.search(r"hipcc|hipify|find_package\((hip|torch|rocm)", file.read_text(), re.IGNORECASE)
    for library in (Path(_C.__file__), simulator.path()):
        with library.open("rb") as file:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
            needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        assert needed, library
        assert not [name for name in needed if re.search(r"torch|c10|hip|hsa|amd", name)], library


@pytest.mark.parametrize("broken", ["key", "lse", "out"])
def test_row_25_a_bad_pointer_is_an_exception(broken):
    """Lengths beyond the memory behind a pointer end in an error that names the kernel."""
    q, k, v = (t.contiguous() for t in Case(4, 64, batch=1, heads=1, kv_heads=1).inputs())
    out, lse = torch.empty_like(q), torch.empty(1, 1, 4)
    hip = _C.open_hip(str(simulator.path()))
    row = (0, 0, 128)

    def forward(**changes):
        registered = {"key": k, "out": out, "lse": lse}
        sizes = {"seqlen_q": 4, "seqlen_kv": 64}
        if broken in changes:
            registered[broken] = changes[broken]
        with (
            simulator.register(q, "q", False),
            simulator.register(registered["key"], "k", False),
            simulator.register(v, "v", False),
            simulator.register(registered["out"], "out"),
            simulator.register(registered["lse"], "lse"),
        ):
            _C.forward(
                hip, 0, "gfx942", 0, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr(),
                1, 1, 1, *sizes.values(), row, row, row, row, 0.1, 0, 0
            )  # fmt: skip

    half = {"key": k[:, :32], "out": out[:, :2], "lse": lse[:, :, :2]}[broken]
    with pytest.raises(RuntimeError, match="attention_forward_rtne"):
        forward(**{broken: half})
    forward()
    assert same_bits(out, liteattention_rocm.attention(q, k, v, scale=0.1))


@pytest.mark.parametrize("name", ["k", "v", "out"])
@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_row_25_sizes_are_checked_before_launch(monkeypatch, name, dimension):
    """A tensor that ends before another one's size says."""
    monkeypatch.setattr(runtime, "_C", SimpleNamespace(open_hip=_C.open_hip))  # has no forward
    q, k, v = Case(4, 4, heads=4, kv_heads=4).inputs()
    tensors = {"q": q, "k": k, "v": v, "out": torch.empty_like(q)}
    tensors[name] = tensors[name].narrow(dimension, 0, 1)
    if name == "k" and dimension > 0:  # as many rows and heads as k has, v must have too
        name = "v"
    with pytest.raises(ValueError, match=f"^{name} must have "):
        liteattention_rocm.attention(**tensors)


SPECIAL_VALUES = {
    "+inf": 0x7F80,
    "-inf": 0xFF80,
    "nan": 0x7FC0,
    "negative nan with a payload": 0xFFD5,
    "nan with a low payload": 0x7F81,
}


def with_bits(tensor, index, pattern):
    changed = tensor.clone()
    changed.view(torch.int16)[index] = pattern - 0x10000 if pattern & 0x8000 else pattern
    return changed


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("pattern", SPECIAL_VALUES.values(), ids=SPECIAL_VALUES)
def test_row_26_inf_and_nan_land_where_aiters_do(aiter, rounding, pattern):
    """One Inf or NaN in one row of Q or K: every output element is NaN, infinite or finite as AITER's is."""
    q, k, v = (t.contiguous() for t in Case(70, 200, rounding, batch=1, heads=1, kv_heads=1).inputs())
    positions = [("q", (0, 33, 0, 5)), ("q", (0, 69, 0, 127))]
    positions += [("k", (0, row, 0, 77)) for row in (0, 31, 32, 63, 64, 130, 199)]
    for name, index in positions:
        inputs = [with_bits(t, index, pattern) if name == which else t for t, which in ((q, "q"), (k, "k"))]
        ours = liteattention_rocm.attention(*inputs, v, rounding=rounding)
        theirs = aiter.forward(*inputs, v, rounding=rounding)
        special, infinite = ~theirs.isfinite(), theirs.isinf()
        assert torch.equal(~ours.isfinite(), special), (name, index)
        assert torch.equal(ours.isnan(), theirs.isnan()), (name, index)
        assert special.any() or pattern in (0x7F80, 0xFF80), (name, index)
        # Signs of infinities too, and NaN bits where the rounding makes all NaN one: rtz shows whether the
        # matrix core or the vector unit made it. Elsewhere the two differ by the roundings of P alone.
        same = infinite if rounding == "rtz" else special
        assert torch.equal(bits(ours)[same], bits(theirs)[same]), (name, index)
        assert torch.allclose(ours[~special].float(), theirs[~special].float(), atol=2e-2), (name, index)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_row_26_several_special_values(aiter, rounding):
    """Inf and NaN anywhere in Q and K. Which of several NaN survives in rtz, the order of sums decides."""
    generator = torch.Generator().manual_seed(0)

    def below(limit):
        return int(torch.randint(limit, (1,), generator=generator))

    for seed in range(12):
        q, k, v = (t.contiguous() for t in Case(40, 130, batch=1, heads=1, kv_heads=1, seed=seed).inputs())
        for _ in range(1 + below(5)):
            tensor = (q, k)[below(2)]
            pattern = list(SPECIAL_VALUES.values())[below(len(SPECIAL_VALUES))]
            index = (0, below(tensor.shape[1]), 0, below(128))
            tensor.copy_(with_bits(tensor, index, pattern))
        ours, lse = liteattention_rocm.attention(q, k, v, rounding=rounding, return_lse=True)
        theirs, their_lse = aiter.forward(q, k, v, rounding=rounding, return_lse=True)
        assert torch.equal(ours.isnan(), theirs.isnan()), seed
        infinite = theirs.isinf()
        assert torch.equal(bits(ours)[infinite], bits(theirs)[infinite]), seed
        if rounding != "rtz":
            assert torch.equal(bits(ours)[ours.isnan()], bits(theirs)[theirs.isnan()]), seed
        finite = theirs.isfinite()
        assert torch.allclose(ours[finite].float(), theirs[finite].float(), atol=2e-2), seed
        assert torch.allclose(lse, their_lse, atol=1e-5, equal_nan=True), seed
