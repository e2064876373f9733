//! A table compiled into the program, in the shape `kvtide export` generates: the compiler refuses a wrong one.
//!
//! The bytes are put together here by hand, in a `const`, without the encoder: a second writer of the format.

use kvtide_runtime::format::crc32;
use kvtide_runtime::{ACTION_SET_HASH, ActionMask, FEATURES, NUM_FEATURES, Observation, Policy, SCHEMA_HASH, Table};

const LEN: usize = 40 + NUM_FEATURES * 8 + 3 * 8 + 2 + 4;

static BYTES: [u8; LEN] = {
    let mut bytes = [0; LEN];
    put(&mut bytes, 0, b"\x8bKVT\r\n\x1a\n");
    put(&mut bytes, 8, &[1, 0, 2, NUM_FEATURES as u8, 6]);
    put(&mut bytes, 16, &SCHEMA_HASH.to_le_bytes());
    put(&mut bytes, 24, &ACTION_SET_HASH.to_le_bytes());
    put(&mut bytes, 32, &[3]);
    let mut feature = 0;
    while feature < NUM_FEATURES {
        put(&mut bytes, 40 + feature * 8, &FEATURES[feature].min.to_le_bytes());
        put(&mut bytes, 44 + feature * 8, &FEATURES[feature].max.to_le_bytes());
        feature += 1;
    }
    let nodes = 40 + NUM_FEATURES * 8;
    put(&mut bytes, nodes, &[0, 0, 1, 0]);
    put(&mut bytes, nodes + 4, &0.5_f32.to_le_bytes());
    put(&mut bytes, nodes + 8, &[0, 1, 3, 0, 9, 4, 2, 1]);
    put(&mut bytes, nodes + 16, &[0, 1, 8, 1, 1, 0, 1, 0]);
    let (body, _) = bytes.split_at(LEN - 4);
    let crc = crc32(body);
    put(&mut bytes, LEN - 4, &crc.to_le_bytes());
    bytes
};

static POLICY: Table<'static> = match Table::parse(&BYTES) {
    Ok(table) => table,
    Err(_) => panic!("not a table for this build of kvtide-runtime"),
};

const fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let mut index = 0;
    while index < value.len() {
        bytes[at + index] = value[index];
        index += 1;
    }
}

#[test]
fn it_decides() {
    let mut observation = Observation::ZERO;
    assert_eq!(POLICY.decide(&observation, ActionMask::ALL).indices(), [9, 4, 2, 1, 3, 0]);
    observation.values[0] = 0.75;
    assert_eq!(POLICY.decide(&observation, ActionMask::ALL).indices(), [1, 0, 1, 0, 8, 1]);
}
