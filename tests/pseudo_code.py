"""An interpreter of the pseudo-code in which AMD's ISA document defines instructions.

`parse` turns the text into a program once; `Program.run` executes it on an environment: a dict from names such as
S0, D0, VCC, EXEC, SCC or laneId to values. Values carry their bits and how those bits are read. Integers of up to
32 bits are computed in 32, as in C; floating-point results are rounded to nearest even after every operation.
"""

import math
import re
from fractions import Fraction

import floating_point as fp

TOKEN = re.compile(
    r"\s*(?://[^\n]*)?(?:(\d+'[A-Z]+)|(\d+'-?(?:0x[0-9a-fA-F]+|\d+\.\d+|\d+)(?:U|I|B)?)"
    r"|(0x[0-9a-fA-F]+|\d+\.\d+|\d+)(F|ULL|LL|U|L)?|(WAVE_\w+\.\w+|[A-Za-z_]\w*)"
    r"|(\*\*|\+:|<<|>>|<>|<=|>=|==|!=|&&|\|\||\+=|-=|[-+*/%&|^~!<>=?:;,.(){}\[\]]))"
)


class Value:
    """Bits, and what they are: u, i (two's complement), b (untyped), f, bf, r (an exact real number) or w (an
    integer without bounds)."""

    __slots__ = ("kind", "bits", "raw")

    def __init__(self, kind, bits, raw):
        self.kind, self.bits = kind, bits
        self.raw = raw if kind in "rw" else raw & ((1 << bits) - 1)

    def __repr__(self):
        return f"{self.kind}{self.bits}:{self.raw:#x}" if self.kind not in "rw" else f"{self.kind}:{self.raw}"

    def integer(self) -> int:
        if self.kind == "i" and self.raw >> (self.bits - 1):
            return self.raw - (1 << self.bits)
        return self.raw

    def is_float(self) -> bool:
        return self.kind in ("f", "bf", "r")

    def format(self) -> fp.Format:
        return fp.FORMATS[self.kind, self.bits]

    def view(self, kind, bits) -> "Value":
        """The `.f32` suffix: other bits of the same register; between float formats a conversion."""
        if self.is_float() and kind in ("f", "bf") and (self.kind, self.bits) != (kind, bits):
            return to_float(self, kind, bits)
        return saturated(self, kind, bits) if self.kind == "w" else Value(kind, bits, self.raw)

    def slice(self, high, low) -> "Value":
        if high < low:
            width = low - high + 1
            field = self.raw >> high & ((1 << width) - 1)
            return Value("u", width, int(f"{field:0{width}b}"[::-1], 2))
        return Value("u", high - low + 1, self.raw >> low)


class Special:
    """A name that stands for a property rather than a number: DENORM, or BYTE1 of SDWA."""

    def __init__(self, name):
        self.name = name

    def view(self, kind, bits):
        return self

    def slice(self, high, low):
        return self


def saturated(value: Value, kind: str, bits: int) -> Value:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind == "i" else (0, (1 << bits) - 1)
    return Value(kind, bits, min(max(value.raw, low), high))


TRUE, FALSE = Value("u", 1, 1), Value("u", 1, 0)


def truth(value) -> bool:
    return value.raw != 0


def boolean(condition) -> Value:
    return TRUE if condition else FALSE


def to_float(value: Value, kind: str, bits: int, toward_zero=False) -> Value:
    target = fp.FORMATS[kind, bits]
    if value.kind == "r":
        return Value(kind, bits, fp.rounded(value.raw, target, toward_zero=toward_zero))
    if value.is_float():
        return Value(kind, bits, fp.convert(value.raw, value.format(), target, toward_zero=toward_zero))
    return Value(kind, bits, value.raw)


def number_to_float(value: Value, kind: str, bits: int) -> Value:
    return Value(kind, bits, fp.rounded(Fraction(value.integer()), fp.FORMATS[kind, bits]))


def cast(value: Value, kind: str, bits: int) -> Value:
    """The `32'U(...)` notation: of an integer the number, of a float the number in another format, and from an
    integer to a float the pattern."""
    if kind in ("f", "bf"):
        return to_float(value, kind, bits)
    return Value(kind, bits, value.raw if value.is_float() else value.integer())


def common_float(a: Value, b: Value) -> tuple[str, int]:
    kinds = [(x.kind, x.bits) for x in (a, b) if x.kind in ("f", "bf")]
    return max(kinds, key=lambda kind: kind[1])


def exact_operands(a: Value, b: Value):
    """Both as Fractions if one is an exact real number and the other finite, else None."""
    if a.kind != "r" and b.kind != "r":
        return None
    numbers = []
    for x in (a, b):
        if x.kind == "r":
            numbers.append(x.raw)
        elif fp.is_nan(x.raw, x.format()) or fp.is_infinite(x.raw, x.format()):
            return None
        else:
            numbers.append(fp.exact(x.raw, x.format()))
    return numbers


def float_operation(operator: str, a: Value, b: Value) -> Value:
    if a.kind == b.kind == "r":
        x, y = a.raw, b.raw
        return Value("r", 0, {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else Fraction(0)}[operator])
    kind, bits = common_float(a, b)
    target = fp.FORMATS[kind, bits]
    numbers = exact_operands(a, b)
    if numbers:
        x, y = numbers
        zero_sign = any(v.is_float() and v.kind != "r" and fp.negative(v.raw, v.format()) for v in (a, b))
        result = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else Fraction(0)}[operator]
        return Value(kind, bits, fp.rounded(result, target, zero_sign=zero_sign))
    x, y = (to_float(v, kind, bits).raw for v in (a, b))
    if operator == "-":
        # Not by negation of a NaN, whose sign would change.
        y = y if fp.is_nan(y, target) else y ^ target.sign
        operator = "+"
    function = {"+": fp.add, "*": fp.multiply, "/": fp.divide}[operator]
    return Value(kind, bits, function(x, y, target))


def arithmetic(operator: str, a: Value, b: Value, saturate=False) -> Value:
    """With `saturate` integers grow without bounds, to be clamped where they are assigned."""
    if a.is_float() or b.is_float():
        if operator == "**":
            exponent = max(-5000, min(5000, b.integer()))
            return Value("r", 0, Fraction(2) ** exponent)
        return float_operation(operator, a, b)
    bits = max(32, a.bits, b.bits)
    kind = "i" if a.kind == b.kind == "i" else "u"
    x, y = a.integer(), b.integer()
    if saturate and operator in "+-*":
        kind = "w"
    if operator in "/%":
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return Value(kind, bits, quotient if operator == "/" else x - quotient * y)
    return Value(kind, bits, {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}[operator])


def bitwise(operator: str, a: Value, b: Value) -> Value:
    bits = max(a.bits, b.bits)
    kind = a.kind if a.kind == b.kind else "u"
    x, y = a.integer(), b.integer()
    return Value(kind, bits, {"&": x & y, "|": x | y, "^": x ^ y}[operator])


def shift(operator: str, a: Value, b: Value) -> Value:
    bits = max(32, a.bits)
    amount = b.raw
    number = a.integer()
    if a.kind == "w":
        return Value("w", bits, number >> amount if operator == ">>" else number << amount)
    if operator == ">>":
        return Value(a.kind, bits, number >> amount)
    return Value(a.kind, bits, number << amount if amount < bits else 0)


def ordering(a, b):
    """-1, 0, 1, or None for unordered."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Special) and x.name == "DENORM":
            return 0 if fp.is_subnormal(y.raw, y.format()) else 2
    if isinstance(a, Special) or isinstance(b, Special):
        names = [x.name if isinstance(x, Special) else x.raw for x in (a, b)]
        return 0 if names[0] == names[1] else 2
    if a.is_float() or b.is_float():
        # 1.0 / x is compared in double, where the text says so by its literal.
        if "r" in (a.kind, b.kind):
            other = common_float(a, b)
            a, b = (to_float(v, *other) for v in (a, b))
        kind, bits = common_float(a, b)
        a, b = (to_float(v, kind, bits) for v in (a, b))
        return fp.compare(a.raw, b.raw, fp.FORMATS[kind, bits])
    x, y = a.integer(), b.integer()
    return (x > y) - (x < y)


COMPARISONS = {
    "==": lambda o: o == 0,
    "!=": lambda o: o != 0,
    "<>": lambda o: o in (-1, 1),
    "<": lambda o: o == -1,
    "<=": lambda o: o in (-1, 0),
    ">": lambda o: o == 1,
    ">=": lambda o: o in (0, 1),
}


class Break(Exception):
    pass


class Return(Exception):
    def __init__(self, value):
        self.value = value


def tokens_of(text: str) -> list[str]:
    found, at = [], 0
    text = re.sub(r"//[^\n]*", "", text).rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match or match.end() == at:
            raise SyntaxError(f"not pseudo-code: {text[at : at + 40]!r}")
        found.append(match.group().strip())
        at = match.end()
    return found


KINDS = {"U": "u", "I": "i", "B": "b", "F": "f", "BF": "bf"}
SUFFIX = re.compile(r"(bf|[uifb]|fp|bf8|fp8)(\d+)$")
BINARY = [
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!=", "<>"),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
]


class Parser:
    """Recursive descent; expressions and statements become closures over an environment."""

    def __init__(self, text):
        self.tokens, self.at = tokens_of(text), 0

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected=None):
        token = self.peek()
        if expected is not None and token != expected:
            raise SyntaxError(f"expected {expected!r}, found {token!r}")
        self.at += 1
        return token

    def accept(self, token):
        if self.peek() == token:
            self.at += 1
            return True
        return False

    # Statements

    def block(self, *ends):
        statements = []
        while True:
            while self.accept(";"):
                pass
            if self.peek() in ends:
                break
            statements.append(self.statement())

        def run(env):
            for statement in statements:
                statement(env)

        return run

    def statement(self):
        token = self.peek()
        if token == "if":
            return self.if_statement()
        if token == "for":
            return self.for_statement()
        if token == "declare":
            return self.declaration()
        if token == "break":
            self.take()

            def leave(env):
                raise Break

            return leave
        if token == "return":
            self.take()
            value = self.expression()

            def give(env):
                raise Return(value(env))

            return give
        if self.peek(1) == "=" and self.peek(2) == "lambda":
            return self.function()
        return self.assignment()

    def if_statement(self):
        branches, otherwise = [], None
        self.take("if")
        condition = self.expression()
        self.take("then")
        branches.append((condition, self.block("elsif", "else", "endif")))
        while self.accept("elsif"):
            condition = self.expression()
            self.take("then")
            branches.append((condition, self.block("elsif", "else", "endif")))
        if self.accept("else"):
            otherwise = self.block("endif")
        self.take("endif")

        def run(env):
            for condition, body in branches:
                if truth(condition(env)):
                    return body(env)
            if otherwise:
                otherwise(env)

        return run

    def for_statement(self):
        self.take("for")
        name = self.take()
        self.take("in")
        first = self.expression()
        self.take(":")
        last = self.expression()
        self.take("do")
        body = self.block("endfor")
        self.take("endfor")

        def run(env):
            start, stop = first(env), last(env)
            for i in range(start.integer(), stop.integer() + 1):
                env[name] = Value(start.kind, start.bits, i)
                try:
                    body(env)
                except Break:
                    break

        return run

    def declaration(self):
        self.take("declare")
        name = self.take()
        self.take(":")
        bits, kind = re.match(r"(\d+)'(\w+)", self.take()).groups()
        count = None
        if self.accept("["):
            count = int(self.take())
            self.take("]")

        def run(env):
            if name in env.get("given", ()):
                return
            blank = Value(KINDS[kind], int(bits), 0)
            env[name] = [blank] * count if count else blank
            env["declared"].add(name)

        return run

    def function(self):
        name = self.take()
        self.take("=")
        self.take("lambda")
        self.take("(")
        parameters = []
        while not self.accept(")"):
            parameters.append(self.take())
            self.accept(",")
        self.take("(")
        if self.peek() in ("if", "declare"):
            body = self.block(")")
        else:
            value = self.expression()

            def body(env):
                raise Return(value(env))

        self.take(")")

        def call(env, arguments):
            inner = dict(env, declared=set(env["declared"]), **dict(zip(parameters, arguments, strict=True)))
            try:
                body(inner)
            except Return as result:
                return result.value
            raise ValueError(f"{name} returns nothing")

        def run(env):
            env[name] = call

        return run

    def assignment(self):
        if self.peek() == "{":
            self.take()
            parts = [self.place()]
            while self.accept(","):
                parts.append(self.place())
            self.take("}")
            self.take("=")
            value = self.expression()

            def scatter(env):
                raw = value(env).raw
                for store, _, width in reversed(parts):
                    bits = width(env)
                    store(env, Value("u", bits, raw))
                    raw >>= bits

            return scatter
        store, load, _ = self.place()
        operator = self.take()
        if operator not in ("=", "+=", "-="):
            raise SyntaxError(f"expected an assignment, found {operator!r}")
        value = self.chained() if operator == "=" else self.expression()
        if operator == "=":
            return lambda env: store(env, value(env))
        return lambda env: store(env, arithmetic(operator[0], load(env), value(env), env.get("saturate")))

    def chained(self):
        """The right side of an assignment, which may be another one: EXEC = D0 = ..."""
        start = self.at
        try:
            store, _, _ = self.place()
            if self.accept("="):
                value = self.chained()

                def both(env):
                    result = value(env)
                    store(env, result)
                    return result

                return both
        except SyntaxError:
            pass
        self.at = start
        return self.expression()

    # What may stand on the left of an assignment

    def place(self):
        name = self.take()
        if not re.match(r"[A-Za-z_]", name):
            raise SyntaxError(f"cannot assign to {name!r}")
        path = self.path()

        def resolve(env):
            return locate(env, name, [step(env) for step in path])

        def store(env, value):
            resolve(env).store(value)

        return store, lambda env: resolve(env).load(), lambda env: resolve(env).bits

    def path(self):
        """Suffixes: [i], [high : low], [first +: count], .type"""
        steps = []
        while True:
            if self.accept("["):
                first = self.expression()
                if self.accept(":"):
                    low = self.expression()
                    steps.append(
                        lambda env, h=first, w=low: ("slice", h(env).integer(), w(env).integer())
                    )
                elif self.accept("+:"):
                    count = self.expression()
                    steps.append(
                        lambda env, f=first, c=count: (
                            "slice",
                            f(env).integer() + c(env).integer() - 1,
                            f(env).integer(),
                        )
                    )
                else:
                    steps.append(lambda env, i=first: ("index", i(env).integer()))
                self.take("]")
            elif self.peek() == "." and SUFFIX.match(self.peek(1)):
                self.take()
                kind, bits = SUFFIX.match(self.take()).groups()
                steps.append(lambda env, k=kind, b=int(bits): ("view", k, b))
            else:
                return steps

    # Expressions

    def expression(self):
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        yes = self.expression()
        self.take(":")
        no = self.expression()
        return lambda env: yes(env) if truth(condition(env)) else no(env)

    def binary(self, level):
        if level == len(BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in BINARY[level]:
            operator = self.take()
            left = combine(operator, left, self.binary(level + 1))
        return left

    def unary(self):
        token = self.peek()
        if token in ("-", "+", "~", "!"):
            self.take()
            operand = self.unary()
            return {
                "-": lambda env: negated(operand(env)),
                "+": operand,
                "~": lambda env: inverted(operand(env)),
                "!": lambda env: boolean(not truth(operand(env))),
            }[token]
        return self.postfix()

    def postfix(self):
        token = self.peek()
        if re.match(r"\d+'[A-Z]+$", token) and self.peek(1) == "(":
            bits, kind = re.match(r"(\d+)'([A-Z]+)", self.take()).groups()
            self.take("(")
            inner = self.expression()
            self.take(")")
            value = lambda env: cast(inner(env), KINDS[kind], int(bits))  # noqa: E731
        elif token == "(":
            self.take()
            value = self.expression()
            self.take(")")
        elif token == "{":
            value = self.concatenation()
        elif re.match(r"\d", token):
            constant = literal(self.take())
            value = lambda env: constant  # noqa: E731
        else:
            return self.named()
        path = self.path()
        if not path:
            return value
        return lambda env: follow(value(env), [step(env) for step in path])

    def concatenation(self):
        self.take("{")
        parts = [self.expression()]
        while self.accept(","):
            parts.append(self.expression())
        self.take("}")

        def value(env):
            raw = bits = 0
            for part in parts:
                one = part(env)
                raw, bits = raw << one.bits | one.raw, bits + one.bits
            return Value("b", bits, raw)

        return value

    def named(self):
        name = self.take()
        if not re.match(r"[A-Za-z_]", name):
            raise SyntaxError(f"unexpected {name!r}")
        if self.accept("("):
            arguments = []
            while not self.accept(")"):
                arguments.append(self.expression())
                self.accept(",")
            path = self.path()
            value = lambda env: call(env, name, [argument(env) for argument in arguments])  # noqa: E731
            return lambda env: follow(value(env), [step(env) for step in path]) if path else value(env)
        path = self.path()

        def load(env):
            return locate(env, name, [step(env) for step in path], reading=True).load()

        return load


def literal(token: str) -> Value:
    match = re.match(r"(\d+)'(-?)(0x[0-9a-fA-F]+|\d+\.\d+|\d+)(U|I|B)?$", token)
    if match:
        bits, sign, number, suffix = match.groups()
        if "." in number:
            return Value("f", int(bits), fp.rounded(Fraction(sign + number), fp.FORMATS["f", int(bits)]))
        return Value("u" if suffix == "U" else "i", int(bits), int(sign + number, 0))
    number, suffix = re.match(r"(0x[0-9a-fA-F]+|\d+\.\d+|\d+)(F|ULL|LL|U|L)?$", token).groups()
    if "." in number:
        bits = 32 if suffix == "F" else 64
        return Value("f", bits, fp.rounded(Fraction(number), fp.FORMATS["f", bits]))
    kind, bits = {None: ("i", 32), "U": ("u", 32), "LL": ("i", 64), "ULL": ("u", 64)}[suffix]
    number = int(number, 0)
    return Value(kind, bits if number < 1 << bits else number.bit_length(), number)


def combine(operator, left, right):
    if operator == "||":
        return lambda env: boolean(truth(left(env)) or truth(right(env)))
    if operator == "&&":
        return lambda env: boolean(truth(left(env)) and truth(right(env)))
    if operator in COMPARISONS:
        holds = COMPARISONS[operator]
        return lambda env: boolean(holds(ordering(left(env), right(env))))
    if operator in ("<<", ">>"):
        return lambda env: shift(operator, left(env), right(env))
    if operator in "&|^":
        return lambda env: bitwise(operator, left(env), right(env))
    return lambda env: arithmetic(operator, left(env), right(env), env.get("saturate"))


def negated(value: Value) -> Value:
    if value.kind == "r":
        return Value("r", 0, -value.raw)
    if value.is_float():
        return Value(value.kind, value.bits, value.raw ^ value.format().sign)
    return Value(value.kind, max(32, value.bits), -value.integer())


def inverted(value: Value) -> Value:
    return Value(value.kind, value.bits, ~value.integer())


def follow(value, steps):
    for i, step in enumerate(steps):
        if step[0] == "view" and steps[i + 1 :] and isinstance(value, Value):
            following = steps[i + 1]
            if following[0] != "view" and step[2] <= max(following[1:]) < value.bits:
                continue  # S1.u32[63 : 32]: the suffix tells how the elements are read, not how many there are
        if isinstance(value, list):
            value = value[step[1]]
        elif step[0] == "view":
            value = value.view(step[1], step[2])
        elif step[0] == "slice":
            value = value.slice(step[1], step[2])
        else:
            value = value.slice(step[1], step[1])
    return value


class Place:
    """Some bits of a variable."""

    def __init__(self, read, write, kind, bits, fixed):
        self.read, self.write = read, write
        self.kind, self.bits, self.low = kind, bits, 0
        self.fixed = fixed  # an assignment keeps the type

    def narrow(self, step):
        if step[0] == "view":
            self.kind, self.bits = step[1], step[2]
        else:
            low = step[2] if step[0] == "slice" else step[1]
            self.bits = step[1] - low + 1
            self.low += low
            self.kind = "b"
        self.fixed = True

    def load(self):
        return Value(self.kind, self.bits, self.read().raw >> self.low)

    def store(self, value):
        if not self.fixed:
            return self.write(value)
        if value.is_float() and self.kind in ("f", "bf"):
            value = to_float(value, self.kind, self.bits)
        if value.kind == "w":
            value = saturated(value, self.kind, self.bits)
        raw = value.raw if value.is_float() else value.integer()
        old = self.read()
        width = max(old.bits, self.low + self.bits)
        mask = ((1 << self.bits) - 1) << self.low
        bits = (raw << self.low & mask) | (old.raw & ~mask)
        self.write(Value(old.kind if old.bits == width else "b", width, bits))


class Constant:
    """A variable that is only read."""

    def __init__(self, value):
        self.value = value

    def load(self):
        return self.value


def locate(env, name, path, reading=False):
    variable = env.get(name)
    if variable is None:
        if name in SPECIALS:
            return Constant(follow(SPECIALS[name], path))
        if reading:
            raise NameError(f"the pseudo-code reads {name}, which has no value")
        variable = env[name] = Value("b", 0, 0)
        if not path:
            return Place(lambda: variable, lambda value: env.__setitem__(name, value), "b", 0, False)
    if callable(getattr(variable, "place", None)):  # memory and register files
        place, path = variable.place(path)
        for step in path:
            place.narrow(step)
        return place
    if isinstance(variable, list) and path:
        index = path[0][1]
        element = Place(
            lambda: variable[index],
            lambda value: variable.__setitem__(index, value),
            variable[index].kind,
            variable[index].bits,
            True,
        )
        if reading:
            return Constant(follow(variable[index], path[1:]))
        for step in path[1:]:
            element.narrow(step)
        return element
    if reading:
        return Constant(follow(variable, path))
    place = Place(
        lambda: env[name],
        lambda value: env.__setitem__(name, value),
        variable.kind,
        variable.bits,
        name in env["declared"],
    )
    for step in path:
        place.narrow(step)
    return place


def f32(value: float) -> Value:
    return Value("f", 32, fp.rounded(Fraction(value), fp.FORMATS["f", 32]))


def f64(value: float) -> Value:
    return Value("f", 64, fp.rounded(Fraction(value), fp.FORMATS["f", 64]))


SPECIALS = {
    "INF": Value("f", 64, fp.FORMATS["f", 64].infinity),
    "NAN": Value("f", 64, fp.FORMATS["f", 64].nan),
    "PI": f64(math.pi),
    "DENORM": Special("DENORM"),
    "ROUND_NEAREST_EVEN": Value("u", 2, 0),
    "ROUND_TOWARD_ZERO": Value("u", 2, 3),
    "UNDERFLOW_F32": Value("f", 32, 0),
    "UNDERFLOW_F64": Value("f", 64, 0),
    "OVERFLOW_F32": Value("f", 32, fp.FORMATS["f", 32].infinity),
    "OVERFLOW_F64": Value("f", 64, fp.FORMATS["f", 64].infinity),
    **{f"BYTE{i}": Value("u", 3, i) for i in range(4)},
    "WORD0": Value("u", 3, 4),
    "WORD1": Value("u", 3, 5),
}


# Functions that the text calls


def through(function):
    """A function of numbers, applied to finite operands and passed over by NaN and infinities."""

    def apply(env, x):
        if x.kind == "r":
            return Value("r", 0, Fraction(function(x.raw)))
        kind = x.format()
        if fp.is_nan(x.raw, kind):
            return Value(x.kind, x.bits, fp.quiet(x.raw, kind))
        if fp.is_infinite(x.raw, kind):
            return x
        number = Fraction(function(fp.exact(x.raw, kind)))
        return Value(x.kind, x.bits, fp.rounded(number, kind, zero_sign=fp.negative(x.raw, kind)))

    return apply


def fused(env, a, b, c):
    return Value(a.kind, a.bits, fp.fused(a.raw, b.raw, c.raw, a.format()))


def magnitude(env, x):
    return Value(x.kind, x.bits, x.raw & ~x.format().sign)


def signalling(x) -> bool:
    kind = x.format()
    return fp.is_nan(x.raw, kind) and not x.raw & kind.quiet_bit


def biased_exponent(env, x):
    kind = x.format()
    return Value("i", 32, x.raw >> kind.fraction_bits & ((1 << kind.exponent_bits) - 1))


def scaled(env, x, power):
    kind = x.format()
    if fp.is_nan(x.raw, kind) or fp.is_infinite(x.raw, kind):
        return x
    number = fp.exact(x.raw, kind) * Fraction(2) ** max(-5000, min(5000, power.integer()))
    return Value(x.kind, x.bits, fp.rounded(number, kind, zero_sign=fp.negative(x.raw, kind)))


def sign_extended_from(env, value, bits):
    width = bits.raw
    if width == 0 or width >= value.bits:
        return value if width else Value(value.kind, value.bits, 0)
    raw = value.raw & ((1 << width) - 1)
    return Value(value.kind, value.bits, raw - (1 << width) if raw >> (width - 1) else raw)


def sign_extended(env, value):
    return Value("i", 64, Value("i", value.bits, value.raw).integer())


def normalised(limit, low):
    """f32_to_snorm and its like: the number in [low, 1] times the limit, to nearest even."""

    def apply(env, x):
        kind = x.format()
        if fp.is_nan(x.raw, kind):
            return Value("i", 32, 0)
        if fp.is_infinite(x.raw, kind):
            number = Fraction(low if fp.negative(x.raw, kind) else 1)
        else:
            number = min(max(fp.exact(x.raw, kind), Fraction(low)), Fraction(1))
        return Value("i", 32, round(number * limit))

    return apply


def transcendental(function):
    """Evaluated in the host's double precision: good to compare within an ulp, not to the bit."""

    def apply(env, *arguments):
        x = arguments[-1]
        try:
            number = function(*(host_float(argument) for argument in arguments))
        except (ValueError, ZeroDivisionError):
            number = math.nan
        except OverflowError:
            number = math.inf
        return from_host(number, x.kind, x.bits)

    return apply


def host_float(x: Value) -> float:
    if x.kind == "r":
        return float(x.raw)
    kind = x.format()
    if fp.is_nan(x.raw, kind):
        return math.nan
    sign = -1.0 if fp.negative(x.raw, kind) else 1.0
    return sign * (math.inf if fp.is_infinite(x.raw, kind) else abs(float(fp.exact(x.raw, kind))))


def from_host(number: float, kind: str, bits: int) -> Value:
    target = fp.FORMATS[kind, bits]
    if math.isnan(number):
        return Value(kind, bits, target.nan)
    if math.isinf(number):
        return Value(kind, bits, target.infinity | (target.sign if number < 0 else 0))
    return Value(kind, bits, fp.rounded(Fraction(number), target, zero_sign=math.copysign(1, number) < 0))


def logarithm(x):
    return -math.inf if x == 0 else math.inf if x == math.inf else math.log2(x)


FUNCTIONS = {
    "fma": fused,
    "trunc": through(math.trunc),
    "floor": through(math.floor),
    "fract": through(lambda x: x - math.floor(x)),
    "isEven": lambda env, x: boolean(host_float(x) % 2 == 0),
    "abs": magnitude,
    "sqrt": lambda env, x: Value(x.kind, x.bits, fp.square_root(x.raw, x.format())),
    "pow": transcendental(lambda base, x: base**x),
    "log2": transcendental(logarithm),
    "sin": transcendental(math.sin),
    "cos": transcendental(math.cos),
    "isNAN": lambda env, x: boolean(fp.is_nan(x.raw, x.format())),
    "isSignalNAN": lambda env, x: boolean(signalling(x)),
    "isQuietNAN": lambda env, x: boolean(fp.is_nan(x.raw, x.format()) and not signalling(x)),
    "cvtToQuietNAN": lambda env, x: Value(x.kind, x.bits, fp.quiet(x.raw, x.format())),
    "exponent": biased_exponent,
    "sign": lambda env, x: Value("u", 1, int(fp.negative(x.raw, x.format()))),
    "ldexp": scaled,
    "signext": sign_extended,
    "signext_from_bit": sign_extended_from,
    "bitCount": lambda env, x: Value("u", 32, x.raw.bit_count()),
    "f32_to_snorm": normalised(32767, -1),
    "f16_to_snorm": normalised(32767, -1),
    "f32_to_unorm": normalised(65535, 0),
    "f16_to_unorm": normalised(65535, 0),
    "s_ff1_i32_b64": lambda env, x: Value("i", 32, (x.raw & -x.raw).bit_length() - 1),
}
CONVERSION = re.compile(r"(bf|f|[ui])(\d+)_to_(bf|f|[ui])(\d+)$")


def conversion(env, value, source, source_bits, target, bits):
    value = value.view(source, source_bits)
    if source in ("f", "bf"):
        if target in ("f", "bf"):
            toward_zero = "ROUND_MODE" in env and env["ROUND_MODE"].raw == 3
            return to_float(value, target, bits, toward_zero=toward_zero)
        return Value(target, bits, fp.to_integer(value.raw, value.format(), bits, target == "i"))
    if target == "f":
        return number_to_float(value, "f", bits)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if target == "i" else (0, (1 << bits) - 1)
    return Value(target, bits, min(max(value.integer(), low), high))


def call(env, name, arguments):
    if callable(env.get(name)):
        return env[name](env, arguments)
    if name in FUNCTIONS:
        return FUNCTIONS[name](env, *arguments)
    match = CONVERSION.match(name)
    if match:
        source, source_bits, target, bits = match.groups()
        return conversion(env, arguments[0], source, int(source_bits), target, int(bits))
    if name.startswith("v_") and "instructions" in env:  # another instruction on these operands
        program = env["instructions"](name)
        kind, bits = SUFFIX_OF_MNEMONIC.search(name).groups()
        inner = dict(env, declared={"D0"}, D0=Value("b", 32, 0))
        inner.update({f"S{i}": argument for i, argument in enumerate(arguments)})
        program(inner)
        return inner["D0"].view(kind, int(bits)) if kind in ("f", "i") else Value("u", 32, inner["D0"].raw)
    raise NameError(f"the pseudo-code calls {name}, which is not defined")


SUFFIX_OF_MNEMONIC = re.compile(r"_([fiu])(\d+)$")


def parse(text: str):
    """A function that executes the text on an environment.

    Raises:
        SyntaxError: the text is prose, or uses a construct that isn't known here.
    """
    parser = Parser(text)
    return parser.block("")
