"""Connections of clients: authorization, requests and the order of reads."""
