//! A row of the trace.

use std::fmt::Write;

/// Bits of a hash that are kept: as many as every reader of JSON has. Of ten million different blocks, two are taken for one
/// another in one file of two hundred.
const HASH_BITS: u32 = 53;

/// A request that has ended.
pub(super) struct Row {
    pub(super) arrival_us: u64,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) prefix: Prefix,
    pub(super) block_tokens: u32,
    pub(super) priority: Option<i32>,
    pub(super) tenant: Option<String>,
    pub(super) cache_salt: Option<String>,
}

/// What the blocks of a prompt are hashed from. Neither leaves the process.
pub(super) enum Prefix {
    /// The prompt has no full block, or nothing is known of it.
    Unknown,
    /// The engine's hashes one after the other, each so many bytes wide and binding all before it.
    Hashes { bytes: Vec<u8>, width: usize },
    /// Tokens of whole blocks.
    Tokens(Vec<i64>),
}

impl Row {
    /// What it takes to keep it.
    pub(super) fn bytes(&self) -> usize {
        let name = |name: &Option<String>| name.as_ref().map_or(0, String::len);
        let prefix = match &self.prefix {
            Prefix::Unknown => 0,
            Prefix::Hashes { bytes, .. } => bytes.len(),
            Prefix::Tokens(tokens) => size_of_val(tokens.as_slice()),
        };
        size_of::<Row>() + prefix + name(&self.tenant) + name(&self.cache_salt)
    }

    /// Appends it as a line of JSON, names and prefixes hashed with `key`.
    pub(super) fn write(&self, key: &[u8; 32], text: &mut String) {
        let Row { arrival_us, prompt_tokens, output_tokens, .. } = self;
        // Writing to a string does not fail.
        let _ = write!(
            text,
            r#"{{"arrival_us":{arrival_us},"prompt_tokens":{prompt_tokens},"output_tokens":{output_tokens}"#
        );
        self.write_prefix(key, text);
        for (field, domain, name) in [("tenant", b't', &self.tenant), ("cache_salt", b's', &self.cache_salt)] {
            if let Some(name) = name {
                let _ = write!(text, r#","{field}":"{:016x}""#, first_bytes(&keyed(key, domain, &[name.as_bytes()])));
            }
        }
        if let Some(priority) = self.priority {
            let _ = write!(text, r#","priority":{priority}"#);
        }
        text.push_str("}\n");
    }

    fn write_prefix(&self, key: &[u8; 32], text: &mut String) {
        let mut separator = r#","hash_ids":["#;
        let mut hash = |hash: &blake3::Hash| {
            let _ = write!(text, "{separator}{}", first_bytes(hash) >> (u64::BITS - HASH_BITS));
            separator = ",";
        };
        match &self.prefix {
            Prefix::Unknown => return,
            Prefix::Hashes { bytes, width } => {
                bytes.chunks_exact(*width).for_each(|block| hash(&keyed(key, b'b', &[block])));
            }
            Prefix::Tokens(tokens) => {
                let mut before = keyed(key, b'r', &[]);
                let mut block_bytes = Vec::new();
                for block in tokens.chunks_exact(self.block_tokens as usize) {
                    block_bytes.clear();
                    block_bytes.extend(block.iter().flat_map(|token| token.to_le_bytes()));
                    before = keyed(key, b'b', &[before.as_bytes(), &block_bytes]);
                    hash(&before);
                }
            }
        }
        let _ = write!(text, r#"],"hash_block_tokens":{}"#, self.block_tokens);
    }
}

/// A keyed hash of what stands in one domain: the same text as tenant and as salt is not the same.
fn keyed(key: &[u8; 32], domain: u8, parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&[domain]);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

fn first_bytes(hash: &blake3::Hash) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_be_bytes(bytes)
}
