"""Runs HIP (simulated), Triton and float64 on one random input and says where they part."""

import json

from ..rounding import ROUNDINGS


def add_options(parser) -> None:
    parser.add_argument(
        "--shape", required=True, metavar="B,H,Sq[,Skv]", help="batch, heads, query rows, KV rows"
    )
    parser.add_argument("--kv-heads", type=int, help="heads of k and v; default: those of q")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounding", choices=list(ROUNDINGS), default="rtne")
    parser.add_argument("--scale", type=float, help="softmax scale; default: 1/sqrt(128)")
    parser.add_argument("--kernels", default="hip,triton", help="which of hip and triton run; default: both")
    parser.add_argument("--device", default="cpu", help="of Triton; on the CPU it runs in its interpreter")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(options) -> int:
    import torch

    from .. import debugging

    try:
        batch, heads, seqlen_q, *seqlen_kv = (int(part) for part in options.shape.split(","))
        (seqlen_kv,) = seqlen_kv or [seqlen_q]
    except ValueError:
        raise ValueError(f"--shape must be B,H,Sq or B,H,Sq,Skv, got {options.shape!r}") from None
    generator = torch.Generator().manual_seed(options.seed)
    kv_heads = heads if options.kv_heads is None else options.kv_heads
    q, k, v = (
        torch.randn(batch, rows, count, 128, generator=generator).bfloat16().to(options.device)
        for rows, count in ((seqlen_q, heads), (seqlen_kv, kv_heads), (seqlen_kv, kv_heads))
    )
    found = debugging.compare(
        q, k, v, scale=options.scale, rounding=options.rounding, kernels=tuple(options.kernels.split(","))
    )
    print(json.dumps(found.json(), indent=1) if options.json else found.text())
    return 1 if found.partings else 0
