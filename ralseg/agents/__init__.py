"""Agents: policies that learn which regions to label, one file for each way of learning.

Here live the base class ``Agent``, the query network that most of them train, replay, and how a learned policy is read
from a checkpoint. An agent is told what was seen, chosen and earned; it neither labels nor trains segmenters.
"""

from ralseg.agents.base import Agent, Episode, LearnedPolicy, PlayedStep
from ralseg.agents.credit_regression import CreditRegression
from ralseg.agents.dqn import DQN
from ralseg.agents.feature_agent import FeatureAgent
from ralseg.agents.feature_policy import FeaturePolicy
from ralseg.agents.group_advantage import GroupAdvantage
from ralseg.agents.paired_blocks import PairedBlocks
from ralseg.agents.policy_search import PolicySearch
from ralseg.agents.query_agent import QueryAgent
from ralseg.agents.query_network import QueryNetwork
from ralseg.agents.rarity_forecast import RarityForecast

__all__ = [
    "DQN",
    "Agent",
    "CreditRegression",
    "Episode",
    "FeatureAgent",
    "FeaturePolicy",
    "GroupAdvantage",
    "LearnedPolicy",
    "PairedBlocks",
    "PlayedStep",
    "PolicySearch",
    "QueryAgent",
    "QueryNetwork",
    "RarityForecast",
]
