"""Engines that fit any model of the contract."""
