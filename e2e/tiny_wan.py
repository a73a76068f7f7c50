"""A tiny Wan2.1-T2V with random weights in diffusers layout: attention as wide as the real one's, 4 MB."""

from __future__ import annotations

import re
import shutil
import string
from collections.abc import Callable
from pathlib import Path

import torch

HEADS = 2
HEAD_DIM = 128
LAYERS = 2
TEXT_WIDTH = 32
SCORE_DEVIATION = 2.0
WORD_SCORE, CHARACTER_SCORE = -4.0, -10.0  # log probabilities: a known word is one token
MODEL_ID = "Wan2.1-T2V-1.3B-Diffusers"  # the name by which SGLang finds the pipeline class
TWO_EXPERTS_ID = "Wan2.2-T2V-A14B-Diffusers"  # the same of a model with two transformers
BOUNDARY = 0.875  # Wan2.2-T2V-A14B: from this share of the noise on the first expert serves
PROMPTS = (
    "A curious raccoon peers through a vibrant field of yellow sunflowers, its eyes wide with interest.",
    "A red kite climbs above a windy beach while two children run along the water.",
    "Slow aerial view of a river delta at dawn, mist over green islands.",
)


def make(
    folder: Path,
    seed: int = 0,
    transformer: Callable[[], torch.nn.Module] | None = None,
    text_width: int = TEXT_WIDTH,
    experts: int = 1,
) -> Path:
    """Writes the model to ``folder`` unless a complete one lies there, and returns the folder.

    The same seed gives the same weights. Text encoder and VAE have the classes of the real pipeline, so every
    stage of SGLang's runs; the text encoder's heads are 16 wide, which an attention backend for 128 must
    leave alone.

    Args:
        folder: where the diffusers pipeline goes.
        seed: seed of torch's generator for every weight.
        transformer: makes the diffusion transformer; :func:`build` by default.
        text_width: of the text encoder; the transformer's has to be the same.
        experts: 2 for the layout of Wan2.2-T2V-A14B, whose second transformer serves little noise.
    """
    folder = Path(folder)
    if (folder / "model_index.json").is_file():
        return folder
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline
    from transformers import UMT5Config, UMT5EncoderModel

    tokenizer = make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        diffusion = (transformer or build)()
        vae = AutoencoderKLWan(
            base_dim=8,
            z_dim=16,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
        )
        text_encoder = UMT5EncoderModel(
            UMT5Config(
                vocab_size=len(tokenizer), d_model=text_width, d_kv=16, d_ff=64, num_layers=1, num_heads=2
            )
        ).to(torch.bfloat16)
        second = [(transformer or build)().to(torch.bfloat16) for _ in range(experts - 1)]
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
    )
    pipeline = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        transformer=diffusion.to(torch.bfloat16),
        vae=vae,
        scheduler=scheduler,
        **({"transformer_2": second[0], "boundary_ratio": BOUNDARY} if second else {}),
    )
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    pipeline.save_pretrained(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return folder


def build(
    layers: int = LAYERS, heads: int = HEADS, feed_forward: int = 256, text_width: int = TEXT_WIDTH
) -> torch.nn.Module:
    """A Wan transformer with random weights in float32, from torch's generator."""
    from diffusers import WanTransformer3DModel

    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=heads,
        attention_head_dim=HEAD_DIM,
        in_channels=16,
        out_channels=16,
        text_dim=text_width,
        freq_dim=256,
        ffn_dim=feed_forward,
        num_layers=layers,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=1024,
    )
    let_attention_matter(transformer)
    return transformer


def let_attention_matter(transformer: torch.nn.Module) -> None:
    """Rescales fresh weights in place so that what attention computes shows in the video.

    With diffusers' initial weights it does not: scores are nearly uniform and the residual's bfloat16
    swallows the result. Here linear layers keep the variance of their input, gates are of order one, and
    scores of normalised queries and keys have a standard deviation of :data:`SCORE_DEVIATION`.
    """
    for module in transformer.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
    for block in transformer.blocks:
        torch.nn.init.normal_(block.scale_shift_table)
        for attention in (block.attn1, block.attn2):
            torch.nn.init.constant_(attention.norm_q.weight, SCORE_DEVIATION)


def make_tokenizer():
    """A Unigram tokenizer with the special tokens of T5, the words of :data:`PROMPTS` and single characters.

    Written down rather than trained: training breaks ties differently from run to run.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ("<pad>", "</s>", "<unk>")
    words = sorted({f"\u2581{word}" for prompt in PROMPTS for word in re.findall(r"\w+", prompt)})
    characters = ["\u2581", *(c for c in string.printable if c.isprintable() and c != " ")]
    vocabulary = [(token, 0.0) for token in special]
    vocabulary += [(word, WORD_SCORE) for word in words] + [(c, CHARACTER_SCORE) for c in characters]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special.index("<unk>")))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    end = special.index("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
    )
