"""Reward functions of TRL's own that are made by a call."""
from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment

repetition = get_repetition_penalty_reward(ngram_size=2, max_penalty=-1.0)
overlong = get_soft_overlong_punishment(max_completion_len=8, soft_punish_cache=4)
