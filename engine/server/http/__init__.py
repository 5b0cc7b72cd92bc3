"""Speaks HTTP/1.1 on accepted sockets: requests, answers, time-outs and fair turns."""
