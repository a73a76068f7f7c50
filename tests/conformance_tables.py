"""AMD's pseudo-code by mnemonic, from the tables of the tinygrad wheel, and where it isn't the last word."""

import functools

import pseudo_code
from pseudo_code import Value

# pip's tinygrad, which holds the ISA document's texts as data.
from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

TEXTS = {key.name.lower(): text for key, text in PCODE.items()}
IEEE = {"WAVE_MODE.IEEE": Value("u", 1, 1)}


def text_of(mnemonic: str, form: str = "") -> str | None:
    """The pseudo-code of an instruction; of its long or short form where the document tells them apart."""
    suffixes = ("_e64", "", "_e32") if form.startswith("VOP3") else ("_e32", "", "_e64")
    for suffix in suffixes:
        if mnemonic + suffix in TEXTS:
            return TEXTS[mnemonic + suffix]
    return None


@functools.cache
def program_of(mnemonic: str, form: str = ""):
    text = text_of(mnemonic, form)
    if text is None:
        raise LookupError(f"no pseudo-code of {mnemonic}")
    return pseudo_code.parse(text)


def pseudo_code_of(mnemonic: str, form: str = ""):
    """(program, the environment's constants)"""
    return program_of(mnemonic, form), dict(IEEE, instructions=program_of)
