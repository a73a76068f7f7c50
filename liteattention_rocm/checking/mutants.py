"""Mutants of a kernel: what is changed, which of them the checks catch, and which are proven equivalent."""

import dataclasses
import io
import re
import struct

from elftools.elf.elffile import ELFFile

from .. import simulator
from . import problems

_COUNTERS = {"vmcnt": 63, "lgkmcnt": 15}  # the largest value of each
_LDS_MEMORY = re.compile(r"ds_(read|write|add|sub|min|max|and|or|xor|inc|dec|cmpst|pk_add)")
_ROW_BYTES = 2 * problems.HEAD_DIM
_DELETED = ("s_waitcnt", "s_barrier", "s_nop")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change to one instruction.

    Attributes:
        kind: delete s_waitcnt, weaken vmcnt, ds offset, ...: what the report counts by.
        address: of the instruction, in the ELF file.
        text: the instruction.
        change: what is different, in words.
        option: value of the simulator's option `mutation`, or "none".
        patch: (offset in the file, 4 bytes) where the code object itself is changed.
    """

    kind: str
    address: int
    text: str
    change: str
    option: str = "none"
    patch: tuple[int, bytes] | None = None


@dataclasses.dataclass
class Verdict:
    """What became of a mutant.

    Attributes:
        caught: whether a check or the comparison of results noticed.
        by: the check's name or "results"; "" for a survivor.
        proof: for a survivor, why it is equivalent; "" where that is not proven.
        reason: the check's message, or why the survivor survived.
    """

    mutant: Mutant
    caught: bool
    by: str = ""
    proof: str = ""
    reason: str = ""


def kernel_instructions(code_object: bytes, kernel: str) -> list[dict]:
    """The instructions of one kernel, as `simulator.disassemble` gives them.

    Raises:
        ValueError: the code object has no such kernel.
    """
    listing = simulator.disassemble(code_object)
    entries = {entry["name"]: entry for entry in listing["kernels"]}
    if kernel not in entries:
        raise ValueError(f"kernel must be one of {', '.join(entries)}, got {kernel!r}")
    begin, size = entries[kernel]["address"], entries[kernel]["size"]
    others = [entry["address"] for entry in entries.values() if entry["address"] > begin]
    end = begin + size if size else min(others, default=1 << 63)
    return [one for one in listing["instructions"] if begin <= one["address"] < end and one["op"]]


def _file_offset(code_object: bytes, address: int) -> int:
    for segment in ELFFile(io.BytesIO(code_object)).iter_segments("PT_LOAD"):
        if segment["p_vaddr"] <= address < segment["p_vaddr"] + segment["p_filesz"]:
            return segment["p_offset"] + address - segment["p_vaddr"]
    raise ValueError(f"address {address:#x} lies in no segment of the code object")


def _lds_offset(code_object: bytes, instruction: dict) -> Mutant:
    """Moves a DS access by one element. Its offset is in the low 16 bits of the first word, in pairs 8."""
    place = _file_offset(code_object, instruction["address"])
    (word,) = struct.unpack_from("<I", code_object, place)
    pair = "2" in instruction["op"].split("_")[1]
    step = 1 if pair else 16 if "b128" in instruction["op"] else 8 if "b64" in instruction["op"] else 4
    limit = 0xFF if pair else 0xFFFF
    offset = word & limit
    moved = offset + step if offset + step <= limit else offset - step
    patched = struct.pack("<I", word & ~limit | moved)
    change = f"offset {moved} instead of {offset}"
    return Mutant("LDS offset", instruction["address"], instruction["text"], change, patch=(place, patched))


def list_mutants(code_object: bytes, kernel: str) -> list[Mutant]:
    """Every mutant of one kernel, by address.

    Raises:
        ValueError: the code object has no such kernel.
    """
    mutants = []
    for instruction in kernel_instructions(code_object, kernel):
        op, text, address = instruction["op"], instruction["text"], instruction["address"]

        def add(kind, change, option, text=text, address=address):
            mutants.append(Mutant(kind, address, text, change, f"{option[0]}:{address}:{option[1]}"))

        if op in _DELETED:
            add(f"delete {op}", "deleted", ("skip", 0))
        if op == "s_waitcnt":
            for counter, most in _COUNTERS.items():
                found = re.search(rf"\b{counter}\((\d+)\)", text)
                if found and int(found[1]) < most:
                    add(f"weaken {counter}", f"{counter}({int(found[1]) + 1})", (counter, 1))
        if _LDS_MEMORY.match(op):
            mutants.append(_lds_offset(code_object, instruction))
        destination = text.removeprefix(op).strip().split(",")[0]
        if destination == "m0" and op.startswith("s_"):
            add("M0", "M0 + 4", ("m0", 4))
        if op.startswith("buffer_") and ("load" in op or "store" in op or "atomic" in op):
            add("num_records", "num_records + 4", ("records", 4))
            add("num_records", f"num_records - {_ROW_BYTES}", ("records", -_ROW_BYTES))
        if (destination.startswith("exec") and op.startswith("s_")) or "saveexec" in op or "v_cmpx" in op:
            add("EXEC", "EXEC without its highest lane", ("exec", -1))
            if text != "s_mov_b64 exec, -1":
                add("EXEC", "EXEC with every lane", ("exec", 1))
    return mutants


def _guess_check(message: str) -> str:
    """Which check a message comes from."""
    for check, words in {
        "waits": "before an s_waitcnt",
        "wait_states": "wait states",
        "races": "race on",
        "uninitialised": "was never written",
        "bounds": "registered memory",
        "resources": "descriptor allocates",
    }.items():
        if words in message:
            return check
    return "address" if "hipErrorIllegalAddress" in message else "failure"


class Judge:
    """Runs the mutants of one kernel.

    Args:
        code_object: bytes of the ELF file.
        kernel: symbol of a kernel with this package's arguments.
        chosen: the problems, the quickest first.
    """

    def __init__(self, code_object: bytes, kernel: str, chosen=problems.PROBLEMS):
        self.code_object, self.kernel = code_object, kernel
        self._module = simulator.Module(code_object)
        self._operands = [problems.operands_of(problem) for problem in chosen]
        simulator.reset_statistics()
        with simulator.checking("all"):
            self._intact = [problems.launch(self._module, kernel, operands) for operands in self._operands]
            self.executed = set(simulator.executed())

    def judge(self, mutant: Mutant) -> Verdict:
        """Runs a mutant until it is caught, then tries to prove a survivor equivalent."""
        module = self._module
        if mutant.patch:
            place, patched = mutant.patch
            module = simulator.Module(
                self.code_object[:place] + patched + self.code_object[place + len(patched) :]
            )
        for delivery in problems.deliveries(seeds=1):
            for operands, intact in zip(self._operands, self._intact, strict=True):
                with simulator.checking("all", mutation=mutant.option, delivery=delivery):
                    try:
                        result = problems.launch(module, self.kernel, operands)
                    except simulator.SimulatorError as error:
                        return Verdict(mutant, True, _guess_check(str(error)), reason=str(error))
                if result != intact:
                    return Verdict(mutant, True, "results", reason=f"other bits on {operands.problem}")
        verdict = Verdict(mutant, False)
        if mutant.option != "none":
            answer = simulator.prove(self.code_object, self.kernel, mutant.option)
            verdict.proof = answer["reason"] if answer["proven"] else ""
            verdict.reason = answer["reason"]
        if not verdict.proof:
            ran = mutant.address in self.executed
            seen = "same bits and no finding on every problem" if ran else "never executed by these problems"
            verdict.reason = f"{seen}; no proof: {verdict.reason}" if verdict.reason else seen
        return verdict
