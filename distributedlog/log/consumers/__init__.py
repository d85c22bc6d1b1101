"""Subscriptions and work queues."""
