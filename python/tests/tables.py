"""Tables for tests, written byte by byte from `runtime/FORMAT.md`."""

import struct
import zlib

import kvtide

PROFILES = {"watermark": 0, "core": 1, "full": 2, "cache": 3}
# The last of the levels, more than any engine's own.
ENGINES_OWN = 8
RANGE = (-1e6, 1e6)


def leaf(watermark=0, victim=0, preemption=1, admission=0, budget=ENGINES_OWN, eviction=0):
    return struct.pack("<8B", 0, 1, budget, eviction, watermark, victim, preemption, admission)


def split(feature, left, threshold):
    return struct.pack("<BBHf", kvtide.FEATURE_NAMES.index(feature), 0, left, threshold)


def table_bytes(nodes, profile="watermark", metadata=None, ranges=None, schema=None):
    ranges = ranges or {}
    body = b"\x8bKVT\r\n\x1a\n" + struct.pack(
        "<H6B", 1, PROFILES[profile], len(kvtide.FEATURE_NAMES), len(kvtide.HEADS), 0, 0, 0
    )
    body += struct.pack("<QQ", kvtide.SCHEMA_HASH if schema is None else schema, kvtide.ACTION_SET_HASH)
    pairs = b""
    for key, value in sorted((metadata or {}).items()):
        pairs += struct.pack("<BH", len(key), len(value)) + key.encode() + value.encode()
    body += struct.pack("<II", len(nodes), len(pairs))
    for name in kvtide.FEATURE_NAMES:
        body += struct.pack("<ff", *ranges.get(name, RANGE))
    body += b"".join(nodes) + pairs + struct.pack("<H", 0)
    return body + struct.pack("<I", zlib.crc32(body))
