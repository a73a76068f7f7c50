"""Metrics of the comparison against values known in closed form."""

import math

import numpy as np
import pytest

from e2e import metrics


def clip(value, frames=3):
    return np.full((frames, 16, 24, 3), value, dtype=np.uint8)


def test_identical_clips():
    result = metrics.compare_frames(clip(90), clip(90))
    assert result["identical"] and result["psnr_db"] is None and result["psnr_db_per_frame"] == [None] * 3
    assert result["ssim"] == pytest.approx(1) and result["largest_pixel_difference"] == 0
    assert result["differing_values"] == 0


def test_constant_difference_has_the_psnr_of_its_square():
    result = metrics.compare_frames(clip(100), clip(105))
    assert result["psnr_db"] == pytest.approx(20 * math.log10(255 / 5))
    assert result["largest_pixel_difference"] == 5 and result["differing_values"] == 1


def test_psnr_over_a_clip_is_of_the_mean_error_not_the_mean_of_frames():
    other = clip(100)
    other[0] += 10
    result = metrics.compare_frames(clip(100), other)
    assert result["psnr_db"] == pytest.approx(10 * math.log10(255**2 / (100 / 3)))
    assert result["psnr_db_per_frame"][0] == pytest.approx(20 * math.log10(255 / 10))
    assert result["psnr_db_per_frame"][1:] == [None, None]
    assert result["differing_values"] == pytest.approx(1 / 3)


def test_differences_do_not_wrap_in_eight_bits():
    assert metrics.compare_frames(clip(0), clip(255))["largest_pixel_difference"] == 255
    assert metrics.compare_frames(clip(255), clip(0))["psnr_db"] == pytest.approx(0)


def test_ssim_of_constant_frames_is_its_luminance_term():
    a, b, c1 = 100.0, 120.0, (0.01 * 255) ** 2
    expected = (2 * a * b + c1) / (a * a + b * b + c1)
    assert metrics.ssim(clip(100), clip(120)) == pytest.approx(expected, abs=1e-6)


def test_ssim_of_inverted_noise_is_negative():
    noise = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3), dtype=np.uint8)
    assert metrics.ssim(noise, 255 - noise) < -0.5


def test_flicker_lowers_the_psnr_of_motion_and_a_constant_offset_does_not():
    assert metrics.motion_psnr(clip(100), clip(105)) == math.inf
    flicker = clip(100, frames=4)
    flicker[1::2] += 4
    assert metrics.motion_psnr(flicker, clip(100, frames=4)) == pytest.approx(20 * math.log10(255 / 4))
    assert metrics.compare_frames(flicker, clip(100, frames=4))["motion_psnr_db"] < 40
    assert metrics.motion_psnr(clip(1, frames=1), clip(9, frames=1)) == math.inf


def test_psnr_of_several_clips_is_of_their_mean_error():
    assert metrics.pooled_psnr([20 * math.log10(255 / 4), None]) == pytest.approx(
        10 * math.log10(255**2 / (16 / 2))
    )
    assert metrics.pooled_psnr([None, None]) is None


def test_latents_per_step():
    a = np.stack([np.ones((2, 1, 2, 2)), np.ones((2, 1, 2, 2))]).astype(np.float32)
    b = np.stack([a[0], -3 * a[1]])
    result = metrics.compare_latents(a, b)
    assert result["rmse"] == pytest.approx([0, 4]) and result["cosine"] == pytest.approx([1, -1])


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\(3, 16, 24, 3\) and \(2, 16, 24, 3\)"):
        metrics.compare_frames(clip(0), clip(0, frames=2))
    with pytest.raises(ValueError, match="can't be compared"):
        metrics.compare_latents(np.zeros((1, 2)), np.zeros((2, 2)))


def test_frames_are_read_in_order_as_they_were_written(tmp_path):
    from PIL import Image

    frames = np.random.default_rng(1).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)
    for index, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"{index:04d}.png")
    assert np.array_equal(metrics.read_frames(tmp_path), frames)
    with pytest.raises(FileNotFoundError, match="no PNG frames"):
        metrics.read_frames(tmp_path / "none")
