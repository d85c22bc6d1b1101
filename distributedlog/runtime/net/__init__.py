"""Connections: TCP, TLS, links, requests, limits."""
