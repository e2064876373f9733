//! Keys against the tokens they stand for.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::kv::{Content, Segment, Sharing};
use crate::time::Micros;
use crate::trace::Request;

const BLOCK: u32 = 4;

fn segments(cuts: &[(u64, u32)]) -> Arc<[Segment]> {
    cuts.iter().map(|&(stream, end)| Segment { stream, end }).collect()
}

fn keys(content: &Content, blocks: u32) -> Vec<u64> {
    let mut keys = Vec::new();
    content.extend_keys(&mut keys, blocks, BLOCK);
    keys
}

/// Blocks at the start that two requests share.
fn shared(a: &Content, b: &Content) -> usize {
    let (a, b) = (keys(a, 20), keys(b, 20));
    let shared = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    assert!(a[shared..].iter().all(|key| !b.contains(key)), "blocks behind a difference have equal keys");
    shared
}

#[derive(Debug, Clone)]
struct Text {
    scope: u64,
    own: u64,
    /// Stream and length.
    cuts: Vec<(u64, u32)>,
}

impl Text {
    fn content(&self) -> Content {
        let mut end = 0;
        let cuts: Vec<_> = self
            .cuts
            .iter()
            .map(|&(stream, tokens)| {
                (stream, {
                    end += tokens;
                    end
                })
            })
            .collect();
        Content::new(self.scope, self.own, segments(&cuts))
    }

    fn streams(&self, tokens: usize) -> Vec<u64> {
        let cut = self.cuts.iter().flat_map(|&(stream, tokens)| std::iter::repeat_n(stream, tokens as usize));
        cut.chain(std::iter::repeat(self.own)).take(tokens).collect()
    }
}

/// Few streams, short cuts: many texts that begin alike, cut differently.
fn text() -> impl Strategy<Value = Text> {
    let cuts = vec((0_u64..2, 1_u32..7), 0..5);
    (0_u64..2, 0_u64..2, cuts).prop_map(|(scope, own, cuts)| Text { scope, own, cuts })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn keys_are_equal_iff_scope_and_all_tokens_so_far_are(a in text(), b in text(), block_size in 1_u32..6) {
        let blocks = 24 / block_size;
        let keys = |text: &Text| {
            let mut keys = Vec::new();
            text.content().extend_keys(&mut keys, blocks, block_size);
            keys
        };
        let (a_keys, b_keys) = (keys(&a), keys(&b));
        for (i, a_key) in a_keys.iter().enumerate() {
            for (j, b_key) in b_keys.iter().enumerate() {
                let tokens = (i + 1) * block_size as usize;
                let same = i == j && a.scope == b.scope && a.streams(tokens) == b.streams(tokens);
                prop_assert_eq!(a_key == b_key, same, "blocks {} and {}", i, j);
            }
        }
    }

    #[test]
    fn however_keys_are_asked_for_they_are_the_same(text in text(), block_size in 1_u32..6, steps in vec(0_u32..5, 0..8)) {
        let content = text.content();
        let (mut at_once, mut in_steps, mut singly) = (Vec::new(), Vec::new(), Vec::new());
        let blocks: u32 = steps.iter().sum();
        content.extend_keys(&mut at_once, blocks, block_size);
        let mut reached = 0;
        for step in steps {
            reached += step;
            content.extend_keys(&mut in_steps, reached, block_size);
        }
        let mut key = content.root();
        for block in 0..blocks {
            key = content.key(key, block, block_size);
            singly.push(key);
        }
        prop_assert_eq!(&at_once, &in_steps);
        prop_assert_eq!(&at_once, &singly);
    }
}

#[test]
fn cuts_between_segments_of_one_stream_do_not_matter() {
    let whole = Content::new(0, 9, segments(&[(5, 11)]));
    let cut = Content::new(0, 9, segments(&[(5, 3), (5, 8), (5, 11)]));
    let own = Content::new(0, 9, segments(&[(5, 11), (9, 30)]));
    assert_eq!(keys(&whole, 20), keys(&cut, 20));
    assert_eq!(keys(&whole, 20), keys(&own, 20));
}

#[test]
fn a_later_turn_quotes_an_earlier_request() {
    let first = Content::new(0, 1, segments(&[(100, 8)]));
    let second = Content::new(0, 2, segments(&[(100, 8), (1, 30)]));
    assert_eq!(shared(&first, &second), 30 / 4);
    // The same stream without what came before it is something else.
    let bare = Content::new(0, 1, segments(&[]));
    assert_eq!(shared(&first, &bare), 0);
}

#[test]
fn a_small_stream_number_is_not_mistaken_for_a_length() {
    // Three whole blocks of streams 1, 2 and 3, and one block cut after 2 tokens.
    let whole = Content::new(0, 3, segments(&[(1, 4), (2, 8)]));
    let cut = Content::new(0, 3, segments(&[(1, 2)]));
    assert_eq!(shared(&whole, &cut), 0);
}

#[test]
fn asking_for_fewer_keys_than_are_known_changes_nothing() {
    let content = Content::new(0, 1, segments(&[]));
    let mut known = keys(&content, 3);
    content.extend_keys(&mut known, 2, BLOCK);
    assert_eq!(known, keys(&content, 3));
}

#[test]
#[should_panic(expected = "segments must rise")]
fn an_empty_segment_is_a_mistake() {
    Content::new(0, 1, segments(&[(5, 4), (6, 4)]));
}

/// The map of the cache takes a key for its own hash: low bits find the bucket, the top seven are compared in it.
#[test]
fn keys_are_spread_as_hashes_are() {
    let mut keys = Vec::new();
    Content::new(0, 0, segments(&[])).extend_keys(&mut keys, 1 << 13, BLOCK);
    for shift in [0, 57] {
        let mut counts = [0_u32; 1 << 7];
        for key in &keys {
            counts[(key >> shift) as usize & 0x7f] += 1;
        }
        // 64 on average, with a standard deviation of 8.
        assert!(counts.iter().all(|count| (24..=104).contains(count)), "{counts:?}");
    }
}

fn row() -> Request {
    Request::new(Micros(0), 40, 40)
}

fn of(row: &Request, index: u64) -> Content {
    Content::of(row, index, Sharing::Tenant)
}

fn hashed(hash_ids: &[u64], hash_block_tokens: u32) -> Request {
    Request { hash_ids: hash_ids.to_vec().into(), hash_block_tokens, ..row() }
}

#[test]
fn rows_of_which_nothing_is_known_share_nothing() {
    assert_eq!(shared(&of(&row(), 0), &of(&row(), 1)), 0);
    assert_eq!(shared(&of(&row(), 0), &of(&row(), 0)), 20);
}

#[test]
fn equal_hash_ids_are_equal_text() {
    let (a, b) = (hashed(&[1, 2, 3], 6), hashed(&[1, 2, 4], 6));
    // 12 tokens in common are three blocks of 4.
    assert_eq!(shared(&of(&a, 0), &of(&b, 1)), 3);
    // Behind the last hash each has its own text, from the first token on.
    assert_eq!(shared(&of(&a, 0), &of(&a, 1)), 18 / 4);
    assert_eq!(shared(&of(&hashed(&[1], 7), 0), &of(&hashed(&[1], 7), 1)), 7 / 4);
    // Hashes of pieces of another length are other hashes.
    assert_eq!(shared(&of(&a, 0), &of(&hashed(&[1, 2, 3], 8), 1)), 0);
    // An id is not the index of a request.
    assert_eq!(shared(&of(&hashed(&[1], 40), 0), &of(&row(), 1)), 0);
}

#[test]
fn a_session_without_hashes_is_one_growing_text() {
    let session = |name: &str| Request { session: Some(name.into()), ..row() };
    assert_eq!(shared(&of(&session("a"), 0), &of(&session("a"), 1)), 20);
    assert_eq!(shared(&of(&session("a"), 0), &of(&session("b"), 1)), 0);
    // With hashes the hashes say what is shared.
    let hashed = Request { session: Some("a".into()), ..hashed(&[1], 8) };
    assert_eq!(shared(&of(&hashed, 0), &of(&hashed, 1)), 2);
    assert_eq!(shared(&of(&hashed, 0), &of(&session("a"), 1)), 0);
}

#[test]
fn tenants_share_only_where_they_may() {
    let tenant = |name: Option<&str>| Request { tenant: name.map(Into::into), ..hashed(&[1, 2], 16) };
    let (a, b, none) = (tenant(Some("a")), tenant(Some("b")), tenant(None));
    for (one, other) in [(&a, &b), (&a, &none)] {
        assert_eq!(shared(&of(one, 0), &of(other, 1)), 0);
        let global = |row, index| Content::of(row, index, Sharing::Global);
        assert_eq!(shared(&global(one, 0), &global(other, 1)), 8);
    }
    assert_eq!(shared(&of(&a, 0), &of(&a, 1)), 8);
}

#[test]
fn a_session_belongs_to_its_tenant() {
    let session = |tenant: Option<&str>| Request { session: Some("s".into()), tenant: tenant.map(Into::into), ..row() };
    let global = |row: &Request, index| Content::of(row, index, Sharing::Global);
    assert_eq!(shared(&global(&session(Some("a")), 0), &global(&session(Some("a")), 1)), 20);
    assert_eq!(shared(&global(&session(Some("a")), 0), &global(&session(Some("b")), 1)), 0);
    assert_eq!(shared(&global(&session(Some("a")), 0), &global(&session(None), 1)), 0);
}

#[test]
fn a_cache_salt_always_separates() {
    let salted = |tenant: Option<&str>, salt: Option<&str>| Request {
        tenant: tenant.map(Into::into),
        cache_salt: salt.map(Into::into),
        ..hashed(&[1, 2], 16)
    };
    for sharing in [Sharing::Tenant, Sharing::Global] {
        let content = |row: &Request, index| Content::of(row, index, sharing);
        assert_eq!(shared(&content(&salted(None, Some("x")), 0), &content(&salted(None, Some("x")), 1)), 8);
        assert_eq!(shared(&content(&salted(None, Some("x")), 0), &content(&salted(None, Some("y")), 1)), 0);
        assert_eq!(shared(&content(&salted(None, Some("x")), 0), &content(&salted(None, None), 1)), 0);
        // A salt is no tenant, and where one ends and the other begins is not lost.
        assert_eq!(shared(&content(&salted(None, Some("x")), 0), &content(&salted(Some("x"), None), 1)), 0);
        assert_eq!(shared(&content(&salted(Some("xy"), Some("z")), 0), &content(&salted(Some("x"), Some("yz")), 1)), 0);
    }
    // Within a tenant the salt separates, and under one salt tenants do.
    assert_eq!(shared(&of(&salted(Some("a"), Some("x")), 0), &of(&salted(Some("a"), Some("y")), 1)), 0);
    assert_eq!(shared(&of(&salted(Some("a"), Some("x")), 0), &of(&salted(Some("b"), Some("x")), 1)), 0);
    let global = |row: &Request, index| Content::of(row, index, Sharing::Global);
    assert_eq!(shared(&global(&salted(Some("a"), Some("x")), 0), &global(&salted(Some("b"), Some("x")), 1)), 8);
}
