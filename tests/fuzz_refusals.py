"""Bad calls for the fuzzer, drawn from a number: arguments of `attention` that must be refused by name before
anything is launched, and raw ones, bytes and options that may fail in any way but by a crash.
"""

import contextlib
import ctypes
import functools
import math
import random
import signal
import warnings

import torch

import hip_stub
import liteattention_rocm
from attention_cases import LAYOUTS, POISON, ROUNDINGS
from fuzz_attention import HEAD_DIM, Disagreement, require
from liteattention_rocm import _C, simulator
from liteattention_rocm import arguments as arguments_module
from liteattention_rocm.checking import problems

OTHER_DTYPES = (
    *(torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int64),
    *(torch.bool, torch.complex64, torch.float8_e4m3fn),
)
NO_TENSORS = (None, 1, 2.5, "q", [1.0], (), object(), {})


def zeros(*shape, **options):
    return torch.zeros(shape, **({"dtype": torch.bfloat16} | options))


def quietly_nested(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that nested tensors are a prototype
        return torch.nested.nested_tensor(list(tensor))


class Draft:
    """A good call that one change makes bad. A change gives the names that its refusal may bear."""

    def __init__(self, choice: random.Random):
        self.choice = choice
        self.layout = choice.choice(LAYOUTS)
        self.batch, self.kv_heads = choice.randint(1, 2), choice.choice((2, 3))
        self.heads = self.kv_heads * choice.choice((1, 2))
        self.rows_q, self.rows_kv = choice.randint(2, 9), choice.randint(2, 9)
        self.arguments = {
            "q": zeros(*self.shape(self.heads, self.rows_q)),
            "k": zeros(*self.shape(self.kv_heads, self.rows_kv)),
            "v": zeros(*self.shape(self.kv_heads, self.rows_kv)),
            "out": zeros(*self.shape(self.heads, self.rows_q)),
            "layout": self.layout,
            "rounding": choice.choice(ROUNDINGS),
            "scale": None,
            "return_lse": False,
            "variant": "fast",
        }
        self.arguments["out"].view(torch.int16).fill_(POISON)
        self.out = self.arguments["out"]

    def shape(self, heads: int, rows: int) -> tuple[int, ...]:
        pair = (rows, heads) if self.layout == "bshd" else (heads, rows)
        return self.batch, *pair, HEAD_DIM

    def tensor(self, names=("q", "k", "v", "out")) -> str:
        return self.choice.choice(names)

    def resized(self, name: str, dimension: int) -> None:
        """Another size of one dimension."""
        shape = list(self.arguments[name].shape)
        shape[dimension] = self.choice.choice([size for size in range(14) if size != shape[dimension]])
        self.arguments[name] = zeros(*shape)

    def no_tensor(self):
        name = self.tensor()
        self.arguments[name] = self.choice.choice(NO_TENSORS[name == "out" :])  # out=None is a good call
        return (name,)

    def dtype(self):
        name = self.tensor()
        self.arguments[name] = self.arguments[name].to(self.choice.choice(OTHER_DTYPES))
        return (name,)

    def rank(self):
        name = self.tensor()
        ranks = [(), (1,), (8, 128), (2, 4, 128), (1, 2, 3, 4, 128), (0,)]
        self.arguments[name] = zeros(*self.choice.choice(ranks))
        return (name,)

    def head_dim(self):
        name = self.tensor()
        shape = self.arguments[name].shape
        self.arguments[name] = zeros(*shape[:3], self.choice.choice((0, 1, 64, 96, 127, 129, 256)))
        return (name,)

    def device(self):
        name = self.tensor()
        self.arguments[name] = self.arguments[name].to("meta")
        return ("q", "k", "v", "out", "device")

    def sparse(self):
        name = self.tensor()
        self.arguments[name] = self.arguments[name].to_sparse()
        return (name,)

    def nested(self):
        name = self.tensor()
        self.arguments[name] = quietly_nested(self.arguments[name])
        return (name,)

    def batch_size(self):
        name = self.tensor()
        self.resized(name, 0)
        return ("q", "k", "v", "out")

    def rows_of_one(self):
        name = self.tensor(("k", "v", "out"))
        self.resized(name, 1 if self.layout == "bshd" else 2)
        return ("k", "v", "out")

    def heads_of_one(self):
        name = self.tensor(("v", "out"))
        self.resized(name, 2 if self.layout == "bshd" else 1)
        return ("k", "v", "out")

    def heads_that_do_not_divide(self):
        self.arguments["q"] = zeros(*self.shape(self.kv_heads + 1, self.rows_q))
        return ("k", "q")

    def no_heads(self):
        self.arguments["k"] = self.arguments["v"] = zeros(*self.shape(0, self.rows_kv))
        return ("k",)

    def no_keys(self):
        self.arguments["k"] = self.arguments["v"] = zeros(*self.shape(self.kv_heads, 0))
        return ("k",)

    def gradient(self):
        name = self.tensor(("q", "k", "v"))
        self.arguments[name].requires_grad_()
        return (name,)

    def scale(self):
        wrong = (math.nan, math.inf, -math.inf, 3e38, -1e39, 10**400, "1", True, 1j, [1.0], torch.ones(1))
        self.arguments["scale"] = self.choice.choice(wrong)
        return ("scale",)

    def a_layout(self):
        self.arguments["layout"] = self.choice.choice(("", "BSHD", "sbhd", "bsh", None, 4, b"bshd", ["bshd"]))
        return ("layout",)

    def a_rounding(self):
        self.arguments["rounding"] = self.choice.choice(
            ("", "RTNE", "rtn", None, 0, 2, b"rtz", torch.bfloat16)
        )
        return ("rounding",)

    def a_variant(self):
        self.arguments["variant"] = self.choice.choice(("", "exact", "FAST", None, 1, b"fast"))
        return ("variant",)

    def aiter_exact_of_a_negative_scale(self):
        self.arguments |= {"variant": "aiter_exact", "scale": self.choice.choice((0.0, -0.1, 0, -1))}
        return ("scale", "variant")

    def a_flag(self):
        self.arguments["return_lse"] = self.choice.choice((None, 0, 1, "yes", []))
        return ("return_lse",)

    def out_over_itself(self):
        out = self.arguments["out"]
        dimension = self.choice.choice([d for d in range(3) if out.shape[d] > 1])
        self.arguments["out"] = out.narrow(dimension, 0, 1).expand_as(out)
        return ("out",)

    def out_over_an_input(self):
        shape = self.arguments["q"].shape
        count = math.prod(shape)
        memory = zeros(count + 8)
        self.arguments["q"] = memory[:count].view(shape)
        shift = self.choice.choice((0, 1, 8))
        self.arguments["out"] = memory[shift : shift + count].view(shape)
        return ("out",)


CHANGES = [
    *(Draft.no_tensor, Draft.dtype, Draft.rank, Draft.head_dim, Draft.device, Draft.sparse, Draft.nested),
    *(
        Draft.batch_size,
        Draft.rows_of_one,
        Draft.heads_of_one,
        Draft.heads_that_do_not_divide,
        Draft.no_heads,
    ),
    *(
        Draft.no_keys,
        Draft.gradient,
        Draft.scale,
        Draft.a_layout,
        Draft.a_rounding,
        Draft.a_flag,
        Draft.a_variant,
    ),
    *(Draft.out_over_itself, Draft.out_over_an_input, Draft.aiter_exact_of_a_negative_scale),
]


def launches() -> int:
    return simulator.statistics()["hip_calls"].get("hipModuleLaunchKernel", 0)


def describe(number: int) -> str:
    choice = random.Random(number)
    return f"bad argument {number}: {choice.choice(CHANGES).__name__}"


def check(number: int) -> None:
    """Makes a bad call and demands TypeError or ValueError that names an argument, and no launch.

    Raises:
        Disagreement: it was refused otherwise, or not at all.
    """
    choice = random.Random(number)
    change = choice.choice(CHANGES)
    draft = Draft(choice)
    names = change(draft)
    before = launches()
    try:
        liteattention_rocm.attention(**draft.arguments)
    except (TypeError, ValueError) as error:
        message = str(error)
        words = message.replace(",", " ").replace("(", " ").split()
        require(any(name in words for name in names), f"{change.__name__}: {message!r} names none of {names}")
    except Exception as error:
        raise Disagreement(f"{change.__name__}: {type(error).__name__}: {error}") from error
    else:
        raise Disagreement(f"{change.__name__}: the call was not refused")
    require(launches() == before, f"{change.__name__}: refused after a launch")
    if draft.arguments["out"] is draft.out:
        untouched = bool((draft.out.view(torch.int16) == POISON).all())
        require(untouched, f"{change.__name__}: refused after out was written")


# What only must not crash

LIMIT_S = 0.3  # a call may be right and long
EXTREMES = (0, 1, -1, 7, 127, 128, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**48, 2**62, 2**63 - 1, -(2**63))
WORDS = ("", "none", "all", "gfx942", "gfx90a", "forward", "pingpong", "\x00", "é" * 40, "x" * 5000)


class Overtime(Exception):
    """A call took longer than it may."""


@contextlib.contextmanager
def limited(seconds: float = LIMIT_S):
    """Ends a launch of the simulator, which looks for signals, after some time."""

    def stop(*_):
        raise Overtime

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def odd(value, choice: random.Random):
    """Something else of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return choice.choice((choice.choice(EXTREMES), value + choice.choice((-1, 1, 2, 8, 4096)), -value))
    if isinstance(value, float):
        return choice.choice((math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 5e-324))
    if isinstance(value, str):
        return choice.choice(WORDS)
    if isinstance(value, tuple):
        changed = list(value)
        index = choice.randrange(len(changed))
        changed[index] = odd(changed[index], choice)
        return tuple(changed)
    return None


def taken(function: str, make_call) -> tuple:
    """The arguments with which a call reaches a function of `_C`, which is not called."""
    arguments = []
    original = getattr(_C, function)
    try:
        setattr(_C, function, lambda *given: arguments.append(given))
        make_call()
    finally:
        setattr(_C, function, original)
    return list(arguments[0])


def raw_call(choice: random.Random) -> None:
    """A launch of the host layer with arguments that are none."""
    q, k, v = torch.randn(3, 1, 9, 2, HEAD_DIM).bfloat16()
    out, lse = torch.empty(2, 9, 2, HEAD_DIM, dtype=torch.bfloat16), torch.empty(2, 2, 9)
    cumulative = torch.tensor([0, 4, 9], dtype=torch.int32)
    packed = (q[0], k[0], v[0], cumulative, cumulative, 5, 5)
    function = choice.choice(("forward", "forward", "varlen_forward", "skip_forward"))
    if function == "forward":
        call = hip_stub.forward_arguments(
            **{"query": q.data_ptr(), "key": k.data_ptr(), "value": v.data_ptr(), "out": out.data_ptr()},
            **{"lse": lse.data_ptr(), "batch": 1, "heads": 2, "kv_heads": 2, "seqlen_q": 9, "seqlen_kv": 9},
            **{f"{name}_strides": (0, HEAD_DIM, 2 * HEAD_DIM) for name in ("query", "key", "value", "out")},
            stream=0,
        )
        arguments = [_C.open_hip(str(simulator.path())), *call.values()]
        arguments += ["", 1, 0, 0][: choice.randrange(5)]  # kernel, pieces, workspace, workspace_bytes
    elif function == "varlen_forward":
        arguments = taken(function, lambda: liteattention_rocm.attention_varlen(*packed))
    else:
        arguments = taken(function, lambda: liteattention_rocm.LiteAttention(break_even=0)(q, k, v))
    for _ in range(choice.choice((1, 1, 2, 5))):
        index = choice.randrange(1, len(arguments))  # the library's number stays
        arguments[index] = odd(arguments[index], choice)
    with contextlib.ExitStack() as stack:
        for name, tensor in (
            ("q", q),
            ("k", k),
            ("v", v),
            ("lengths", cumulative),
            ("out", out),
            ("lse", lse),
        ):
            stack.enter_context(simulator.register(tensor, name, name in ("out", "lse")))
        stack.enter_context(limited())
        getattr(_C, function)(*arguments)


def raw_bound(choice: random.Random) -> None:
    """A bound call of sizes, strides and options that are none. Its launch trusts its addresses."""
    q = torch.randn(1, 9, 2, HEAD_DIM).bfloat16()
    arguments = taken("BoundForward", lambda: suppressed(liteattention_rocm.attention, q, q, q))
    for _ in range(choice.choice((1, 1, 2, 5))):
        index = choice.randrange(1, len(arguments))
        arguments[index] = odd(arguments[index], choice)
    _C.BoundForward(*arguments)


def suppressed(function, *arguments) -> None:
    """A call that may end early, since what it needs was not made."""
    arguments_module._calls.clear()  # a call that is known already binds nothing
    with contextlib.suppress(AttributeError):
        function(*arguments)
    arguments_module._calls.clear()


def raw_plan(choice: random.Random) -> None:
    """`_C.plan` of a good call's sizes and of some that are none: they take microseconds."""
    kernels = ("", "forward", "pingpong", "aiter_exact")
    for _ in range(200):
        sizes = [2, 4, 2, 300, 200, 304, choice.choice(kernels), choice.choice((0, 1, 3))]
        for _ in range(choice.choice((1, 1, 2, 5))):
            index = choice.randrange(len(sizes))
            sizes[index] = odd(sizes[index], choice)
        with contextlib.suppress(ValueError, TypeError), limited(5):
            _C.plan(*sizes)


def options(choice: random.Random) -> None:
    """Options of the simulator with values that are none."""
    name = choice.choice(
        ("threads", "check", "matrix", "mutation", "delivery", "findings", "progress", "xcds", "q")
    )
    value = choice.choice(
        (*WORDS, "skip:", "skip:0:0:0", "random:", "random:-1", "-1", "99999999999999", "1e9")
    )
    if (name, value) == ("threads", "99999999999999"):
        return
    try:
        simulator.set_option(name, value.replace("\x00", "\x01"))
    finally:
        for known, default in DEFAULTS.items():
            simulator.set_option(known, default)


DEFAULTS = {
    "threads": 1,
    "check": "waits,wait_states",
    "matrix": "exact",
    "mutation": "none",
    "delivery": "early",
    "findings": "first",
    "progress": 0,
    "xcds": 8,
}


def memory(choice: random.Random) -> None:
    """Registrations of memory that is none; nothing is launched meanwhile."""
    library = simulator.library()
    address, size = choice.choice(EXTREMES), abs(choice.choice(EXTREMES))
    if library.gfx942sim_register_memory(ctypes.c_void_p(address), size, b"odd", 1) == 0:
        library.gfx942sim_unregister_memory(ctypes.c_void_p(address))
    library.gfx942sim_unregister_memory(ctypes.c_void_p(address))


def damaged(choice: random.Random) -> bytes:
    """The code object with some bytes changed, moved or cut off."""
    image = bytearray(_C.code_object("gfx942"))
    kind = choice.random()
    if kind < 0.1:
        return bytes(image[: choice.randrange(len(image))])
    # Headers, notes and tables of symbols lie before the first kernel.
    most = 8192 if kind < 0.5 else len(image)
    for _ in range(choice.choice((1, 1, 2, 4, 16))):
        place = choice.randrange(most - 8)
        width = choice.choice((1, 2, 4, 8))
        filled = choice.choice((bytes(width), b"\xff" * width, choice.randbytes(width)))
        image[place : place + width] = filled
    return bytes(image)


def damaged_code(choice: random.Random) -> None:
    """A damaged code object is disassembled, proven things about, loaded and run."""
    image = damaged(choice)
    kernel = choice.choice(_C.kernel_names()[:3])
    with contextlib.suppress(simulator.SimulatorError, UnicodeDecodeError):
        simulator.disassemble(image)
    if choice.random() < 0.1:
        with contextlib.suppress(simulator.SimulatorError, UnicodeDecodeError):
            simulator.prove(image, kernel, f"skip:{choice.randrange(8192, len(image) + 1) & ~3}")
    run(simulator.Module(image), kernel, choice)


def damaged_instructions(choice: random.Random) -> None:
    """A kernel some of whose instructions are other ones, under any of the checks."""
    image = bytearray(_C.code_object("gfx942"))
    kernel = choice.choice(_C.kernel_names()[:3])
    begin, size = kernel_extent(kernel)
    for _ in range(choice.choice((1, 1, 2, 8))):
        place = begin + 4 * choice.randrange(size // 4)
        other = begin + 4 * choice.randrange(size // 4)
        words = (
            choice.randbytes(4),
            bytes(image[other : other + 4]),
            flipped(image[place : place + 4], choice),
        )
        image[place : place + 4] = choice.choice(words)
    run(simulator.Module(bytes(image)), kernel, choice)


def flipped(word: bytes, choice: random.Random) -> bytes:
    return (int.from_bytes(word, "little") ^ 1 << choice.randrange(32)).to_bytes(4, "little")


@functools.cache
def kernel_extent(kernel: str) -> tuple[int, int]:
    """Offset in the file and bytes of a kernel's instructions."""
    from liteattention_rocm.checking import mutants

    image = _C.code_object("gfx942")
    instructions = mutants.kernel_instructions(image, kernel)
    first, last = instructions[0]["address"], instructions[-1]
    return mutants._file_offset(image, first), last["address"] + last["size"] - first


def run(module, kernel: str, choice: random.Random) -> None:
    """Launches a kernel with small operands, odd geometry now and then, under some of the checks."""
    operands = problems.Operands.draw(
        problems.Problem(choice.choice((1, 20, 40)), choice.choice((3, 70, 130)))
    )
    packed = problems.arguments_of(operands)
    if choice.random() < 0.1:
        packed = choice.randbytes(len(packed)) if choice.random() < 0.5 else packed[: choice.randrange(200)]
    grid, block, lds = (1, 1, 1), (256, 1, 1), 0
    if choice.random() < 0.1:
        grid = tuple(choice.choice((0, 1, 2, 3)) for _ in range(3))
        block = tuple(choice.choice((0, 1, 2, 64, 100, 256, 1024, 65535)) for _ in range(3))
        lds = choice.choice((0, 4, 1000, 65536, 2**31))
    check = choice.choice(("none", "waits,wait_states", "waits,wait_states", "all", "races", "uninitialised"))
    delivery = choice.choice(("early", "early", "late", f"random:{choice.randrange(100)}"))
    findings = choice.choice(("first", "all"))
    try:
        with simulator.checking(check, delivery=delivery, findings=findings), problems.registered(operands):
            with limited():
                module.launch(kernel, grid, block, packed, lds)
            if findings == "all":
                simulator.findings()
    finally:
        module.close()


ROBUSTNESS = (raw_call, raw_call, raw_bound, raw_plan, options, memory, damaged_code, damaged_instructions)


def describe_robustness(number: int) -> str:
    return f"robustness {number}: {random.Random(number).choice(ROBUSTNESS).__name__}"


def check_robustness(number: int) -> None:
    """Does something odd. What ends in an exception of these kinds is well; a crash ends the process.

    Raises:
        Disagreement: an exception of another kind.
    """
    choice = random.Random(number)
    what = choice.choice(ROBUSTNESS)
    torch.manual_seed(number)
    try:
        what(choice)
    except (TypeError, ValueError, OverflowError, RuntimeError, MemoryError, UnicodeError, Overtime):
        return
    except Exception as error:
        raise Disagreement(f"{what.__name__}: {type(error).__name__}: {error}") from error
