"""The loss: by hand, against stock TRL with its padding, and what an update does."""

from types import MethodType

import numpy as np
import pytest
import torch
from trainer_parts import Flaky, make, rows
from trl import GRPOTrainer


def plain_logps(model, prompt, completion):
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def constructed(trainer, samples):
    """A batch by hand. samples: (prompt, completion, tool mask, advantages, ratio new / old) of each row."""
    width, left = max(len(s[1]) for s in samples), max(len(s[0]) for s in samples)
    pad = trainer.policy.tokenizer.pad_token_id

    def right(values, fill=0):
        return torch.tensor([list(v) + [fill] * (width - len(v)) for v in values])

    with torch.no_grad():
        old = [(plain_logps(trainer.model, s[0], s[1]) - torch.tensor(s[4]).log()).tolist() for s in samples]
    mask = right([s[2] for s in samples])
    return {
        "prompt_ids": torch.tensor([[pad] * (left - len(s[0])) + s[0] for s in samples]),
        "prompt_mask": torch.tensor([[0] * (left - len(s[0])) + [1] * len(s[0]) for s in samples]),
        "completion_ids": right([s[1] for s in samples], pad),
        "completion_mask": right([[1] * len(s[1]) for s in samples]),
        "tool_mask": mask,
        "advantages": right([s[3] for s in samples]),
        "old_per_token_logps": right(old),
        "num_items_in_batch": mask.sum(),
    }


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_the_clipped_loss_by_hand(policy, lake, tmp_path, loss_type):
    trainer = make(policy, lake, tmp_path, loss_type=loss_type)
    samples = [
        ([10, 20, 30], [40, 50, 60, 70], [1, 0, 1, 1], [2.0, 100.0, 2.0, 2.0], [1.0, 3.0, 1.5, 0.5]),
        ([11, 12, 13, 14, 15], [41, 51], [1, 1], [-1.0, -1.0], [0.5, 1.5]),
    ]
    loss = trainer._compute_loss(trainer.model, constructed(trainer, samples)).item()
    # -min(r A, clip(r, 0.8, 1.2) A); the token of the environment (ratio 3, advantage 100) does not count
    first = np.array([-2.0, -min(1.5 * 2, 1.2 * 2), -min(0.5 * 2, 0.8 * 2)])  # -2, -2.4 (clipped), -1
    second = np.array([-min(-0.5, -0.8), -min(-1.5, -1.2)])  # 0.8 (clipped), 1.5
    by_hand = {"dapo": (first.sum() + second.sum()) / 5, "grpo": (first.mean() + second.mean()) / 2}[loss_type]
    assert loss == pytest.approx(by_hand, abs=1e-5)
    assert trainer._metrics["train"]["clip_ratio/region_mean"][-1] == pytest.approx(2 / 5)


def test_loss_and_gradient_are_those_of_stock_trl_with_padding(policy, lake, tmp_path):
    trainer = make(policy, lake, tmp_path, Flaky, beta=0.05)
    batch = trainer._generate_and_score_completions(rows(trainer))
    batch["ref_per_token_logps"] = batch["old_per_token_logps"] - 0.3 * torch.rand_like(batch["old_per_token_logps"])
    assert len(set(batch["completion_mask"].sum(1).tolist())) > 3

    def loss_and_gradients(call):
        trainer.model.zero_grad()
        loss = call(trainer.model, batch)
        loss.backward()
        return loss.item(), [p.grad.clone() for p in trainer.model.parameters()]

    ours, our_gradients = loss_and_gradients(trainer._compute_loss)
    stock = GRPOTrainer._get_per_token_logps_and_entropies
    trainer._get_per_token_logps_and_entropies = MethodType(stock, trainer)
    theirs, their_gradients = loss_and_gradients(MethodType(GRPOTrainer._compute_loss, trainer))
    assert ours == pytest.approx(theirs, abs=1e-6) and abs(ours) > 1e-4
    for a, b in zip(our_gradients, their_gradients, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    metrics = trainer._metrics["train"]
    for name in ("entropy", "kl", "clip_ratio/region_mean"):
        assert metrics[name][-2] == pytest.approx(metrics[name][-1], abs=1e-5)


def test_scores_equal_stock_trl_for_every_token_and_unsupported_options_raise(policy, lake, tmp_path):
    trainer = make(policy, lake, tmp_path)
    batch = trainer._generate_and_score_completions(rows(trainer))
    ids, mask = (torch.cat([batch[f"prompt_{k}"], batch[f"completion_{k}"]], 1) for k in ("ids", "mask"))
    args = (trainer.model, ids, mask, batch["completion_ids"].shape[1])
    ours = trainer._get_per_token_logps_and_entropies(*args, compute_entropy=True)
    stock = GRPOTrainer._get_per_token_logps_and_entropies(trainer, *args, compute_entropy=True)
    real = batch["completion_mask"].bool()
    for a, b in zip(ours[:2], stock[:2], strict=True):
        np.testing.assert_allclose(a[real].detach(), b[real].detach(), atol=1e-5)
    assert (ours[0][~real] == 0).all() and ours[2] is None
    assert trainer._get_per_token_logps_and_entropies(*args)[1] is None
    with pytest.raises(NotImplementedError, match="pixel_values is not supported"):
        trainer._get_per_token_logps_and_entropies(*args, pixel_values=torch.zeros(1))


def test_an_update_makes_rewarded_actions_likelier_and_punished_ones_rarer(policy, lake, tmp_path):
    trainer = make(policy, lake, tmp_path)
    chat = policy.chat
    prompt = chat.prompt([{"role": "user", "content": "P 1 1 G 3 3"}])
    left, up = chat.assistant("Left"), chat.assistant("Up")
    batch = constructed(
        trainer,
        [(prompt, a, [1] * len(a), [sign] * len(a), [1.0] * len(a)) for a, sign in ((left, 1.0), (up, -1.0))],
    )
    before = [plain_logps(trainer.model, prompt, a)[0].item() for a in (left, up)]
    optimizer = trainer.create_optimizer()
    trainer._compute_loss(trainer.model, batch).backward()
    optimizer.step()
    after = [plain_logps(trainer.model, prompt, a)[0].item() for a in (left, up)]
    assert after[0] > before[0] + 1e-3 and after[1] < before[1] - 1e-3
