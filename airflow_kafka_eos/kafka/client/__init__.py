"""Talking to brokers: settings, TLS and logins, connections, requests.

The only room that touches kafka-python's inside.
"""
