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


def kept(retention):
    """A leaf of a retention tree."""
    return struct.pack("<8B", 0, 1, 0, 0, retention, 0, 0, 0)


def asked(feature, left, threshold):
    """A split of a retention tree."""
    return struct.pack("<BBHf", kvtide.RELEASE_FEATURE_NAMES.index(feature), 0, left, threshold)


def section(nodes, schema=None):
    """A retention section."""
    features = len(kvtide.RELEASE_FEATURE_NAMES)
    body = struct.pack("<QBBHI", kvtide.RELEASE_SCHEMA_HASH if schema is None else schema, features, 4, 0, len(nodes))
    return body + struct.pack("<ff", *RANGE) * features + b"".join(nodes)


def table_bytes(nodes, profile="watermark", metadata=None, ranges=None, schema=None, retention=b""):
    ranges, version = ranges or {}, 2 if retention else 1
    heads, features = len(kvtide.HEADS), len(kvtide.FEATURE_NAMES)
    body = b"\x8bKVT\r\n\x1a\n" + struct.pack("<H6B", version, PROFILES[profile], features, heads, 0, 0, 0)
    body += struct.pack("<QQ", kvtide.SCHEMA_HASH if schema is None else schema, kvtide.ACTION_SET_HASH)
    pairs = b""
    for key, value in sorted((metadata or {}).items()):
        pairs += struct.pack("<BH", len(key), len(value)) + key.encode() + value.encode()
    body += struct.pack("<II", len(nodes), len(pairs))
    for name in kvtide.FEATURE_NAMES:
        body += struct.pack("<ff", *ranges.get(name, RANGE))
    body += b"".join(nodes) + pairs + struct.pack("<H", 0) + retention
    return body + struct.pack("<I", zlib.crc32(body))
