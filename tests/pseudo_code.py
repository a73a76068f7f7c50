"""An interpreter of the pseudo-code in which AMD's ISA document defines instructions.

`parse` turns a text into a function, which executes it on an environment: a dict from names such as S0, D0,
VCC, EXEC, SCC or laneId to values, and with the names of variables whose type is fixed under "declared".
"""

import re
from fractions import Fraction

import floating_point as fp
from pseudo_code_functions import call
from pseudo_code_values import (
    COMPARISONS,
    SPECIALS,
    SignedZero,
    Value,
    arithmetic,
    bitwise,
    boolean,
    cast,
    inverted,
    negated,
    ordering,
    saturated,
    shift,
    to_float,
    truth,
)

TOKEN = re.compile(
    r"\s*(?://[^\n]*)?(?:(\d+'[A-Z]+)|(\d+'-?(?:0x[0-9a-fA-F]+|\d+\.\d+|\d+)(?:U|I|B)?)"
    r"|(0x[0-9a-fA-F]+|\d+\.\d+|\d+)(F|ULL|LL|U|L)?|(WAVE_\w+\.\w+|[A-Za-z_]\w*)"
    r"|(\*\*|\+:|<<|>>|<>|<=|>=|==|!=|&&|\|\||\+=|-=|[-+*/%&|^~!<>=?:;,.(){}\[\]]))"
)


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
                    steps.append(lambda env, h=first, w=low: ("slice", h(env).integer(), w(env).integer()))
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
            if token in "+-" and self.peek() == "0.0":
                self.take()
                zero = SignedZero("f", 64, (token == "-") << 63)
                return lambda env: zero
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
                if arguments:
                    self.take(",")
                arguments.append(self.expression())
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


def follow(value, steps):
    for i, step in enumerate(steps):
        if step[0] == "view" and steps[i + 1 :] and isinstance(value, Value):
            following = steps[i + 1]
            if following[0] != "view" and step[2] <= max(following[1:]) < value.bits:
                continue  # S1.u32[63 : 32]: the suffix says how elements are read, not how many there are
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


def parse(text: str):
    """A function that executes the text on an environment.

    Raises:
        SyntaxError: the text is prose, or uses a construct that isn't known here.
    """
    parser = Parser(text)
    return parser.block("")
