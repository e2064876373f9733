//! What must hold for any bytes. The fuzz targets and `tests/corpus.rs` run the same checks.

use kvtide_runtime::format::{MAX_DEPTH, TableFile, crc32};
use kvtide_runtime::observer::Totals;
use kvtide_runtime::{
    ACTION_SET_HASH, ActionMask, FEATURES, Guard, GuardConfig, Head, NUM_FEATURES, Observation, Observer, OwnedTable,
    Policy, RunningRequest, SCHEMA_HASH, Snapshot, Table, TreeNode, WaitingRequest,
};

/// Whatever bytes are a table, can be walked and asked; whatever are not, are refused. Nothing panics.
///
/// The bytes are tried as they are, then with a right CRC, then with this build's hashes as well: few inputs would get
/// past those by chance.
pub fn parse(bytes: &[u8]) {
    let observation = drawn(bytes);
    parse_as_it_is(bytes, &observation);
    let Some(end) = bytes.len().checked_sub(4).filter(|&end| end >= 32) else { return };
    let mut copy = bytes.to_vec();
    let seal = |copy: &mut Vec<u8>| {
        let crc = crc32(&copy[..end]);
        copy[end..].copy_from_slice(&crc.to_le_bytes());
        parse_as_it_is(copy, &observation);
    };
    seal(&mut copy);
    copy[16..24].copy_from_slice(&SCHEMA_HASH.to_le_bytes());
    copy[24..32].copy_from_slice(&ACTION_SET_HASH.to_le_bytes());
    seal(&mut copy);
}

fn parse_as_it_is(bytes: &[u8], observation: &Observation) {
    let file = TableFile::parse(bytes);
    match file {
        Err(error) => {
            assert!(!error.to_string().is_empty() && !error.name().is_empty());
            assert_eq!(Table::parse(bytes), Err(error));
        }
        Ok(file) => {
            let steps = file.path(&observation.values).count();
            assert!(steps <= usize::from(file.depth()) && file.depth() <= MAX_DEPTH);
            let leaf = file.leaf(&observation.values);
            assert!(
                matches!(file.nodes().nth(leaf.node.into()), Some(TreeNode::Leaf { choices }) if choices == leaf.choices)
            );
            file.leaf(&[]);
            assert!(file.metadata().all(|(key, _)| !key.is_empty()));
            assert!(file.extensions().all(|extension| extension.bytes.len() < bytes.len()));
            assert_eq!(file.ranges().filter(|range| range.min <= range.max).count(), file.ranges().len());
        }
    }
    let mask = mask_of(bytes);
    if let Ok(table) = Table::parse(bytes) {
        let action = table.decide(observation, mask);
        assert!(Head::ALL.iter().all(|&head| mask.allows(head, action.get(head))));
        let (node, _) = table.leaf(observation);
        assert!(table.path(observation).all(|(_, comparison)| comparison.node < node));
        let owned = OwnedTable::parse(bytes).expect("it was accepted");
        assert_eq!(owned.table(), Ok(table));
    }
    let mut guard = Guard::new(Table::parse(bytes), GuardConfig::default());
    for age_us in [0, 2_000_000] {
        let controls = guard.decide(observation, age_us, mask);
        assert!((0.0..=1.0).contains(&controls.watermark));
    }
    assert_eq!(guard.counters().decisions, 2);
}

/// Whatever a node says it knows, its observations are finite and in range.
pub fn observe(bytes: &[u8]) {
    let mut numbers = Numbers(bytes);
    let mut observer = Observer::new();
    for _ in 0..4 {
        let mut snapshot = snapshot(&mut numbers);
        for _ in 0..numbers.small(4) {
            snapshot.add_running(&running(&mut numbers));
        }
        let more: Vec<RunningRequest> = (0..numbers.small(4)).map(|_| running(&mut numbers)).collect();
        snapshot.add_all_running(more.into_iter());
        let queue: Vec<WaitingRequest> = (0..numbers.small(6)).map(|_| waiting(&mut numbers)).collect();
        snapshot.look_at_waiting(queue.iter().copied(), queue.iter().rev().copied());
        let observation = observer.observe(&snapshot);
        for (value, spec) in observation.values.iter().zip(&FEATURES) {
            assert!(value.is_finite() && (spec.min..=spec.max).contains(value), "{} is {value}", spec.name);
        }
    }
}

/// An observation out of the bytes: any bits, NaN and infinities included.
fn drawn(bytes: &[u8]) -> Observation {
    let mut numbers = Numbers(bytes);
    // From the far end, so that the header does not decide every value.
    let back: Vec<u8> = bytes.iter().rev().copied().take(NUM_FEATURES * 4).collect();
    let mut backwards = Numbers(&back);
    Observation {
        values: std::array::from_fn(|feature| {
            let bits = if feature % 2 == 0 { numbers.u32() } else { backwards.u32() };
            // Half of them small, where thresholds are.
            if bits % 4 < 2 { (bits % 1000) as f32 / 250.0 } else { f32::from_bits(bits) }
        }),
    }
}

fn mask_of(bytes: &[u8]) -> ActionMask {
    bytes
        .iter()
        .rev()
        .take(8)
        .fold(ActionMask::ALL, |mask, &byte| mask.forbid(Head::ALL[usize::from(byte % 4)], byte / 4 % 16))
}

/// Numbers out of bytes; zeros when they run out.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn u64(&mut self) -> u64 {
        // The first byte says how large the number is: as nodes have them, or at the edge of its type.
        let kind = self.byte();
        let mut word = [0; 8];
        for byte in word.iter_mut().take(match kind % 8 {
            0..4 => 2,
            4 | 5 => 4,
            _ => 8,
        }) {
            *byte = self.byte();
        }
        let number = u64::from_le_bytes(word);
        if kind % 8 == 7 { u64::MAX - (number % 64) } else { number }
    }

    fn u32(&mut self) -> u32 {
        let number = self.u64();
        u32::try_from(number).unwrap_or(u32::MAX - (number % 64) as u32)
    }

    fn small(&mut self, below: u8) -> u8 {
        self.byte() % below
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
}

fn snapshot(numbers: &mut Numbers<'_>) -> Snapshot {
    Snapshot {
        now_us: numbers.u64(),
        block_size: numbers.u32(),
        num_gpu_blocks: numbers.u32(),
        free_gpu_blocks: numbers.u32(),
        evictable_blocks: numbers.u32(),
        num_cpu_blocks: numbers.u32(),
        free_cpu_blocks: numbers.u32(),
        growth_blocks: [numbers.u32(), numbers.u32(), numbers.u32()],
        held_blocks: numbers.u32(),
        running: numbers.u32(),
        waiting: numbers.u32(),
        swapped: numbers.u32(),
        max_num_seqs: numbers.u32(),
        max_num_batched_tokens: numbers.u32(),
        head_blocks: numbers.u32(),
        head_tokens: numbers.u32(),
        waiting_blocks: numbers.u64(),
        waiting_tokens: numbers.u64(),
        oldest_wait_us: numbers.u64(),
        late_waiting: numbers.u32(),
        on_time_waiting: numbers.u32(),
        on_time_blocks: numbers.u64(),
        on_time_slack_us: numbers.u64(),
        behind: numbers.u32(),
        slack_sum_us: numbers.u64().cast_signed(),
        generated_tokens: numbers.u64(),
        pending_prefill_tokens: numbers.u64(),
        decodes: numbers.u32(),
        decode_slack_sum_us: numbers.u64().cast_signed(),
        least_decode_slack_us: numbers.u64().cast_signed(),
        ttft_target_us: numbers.u64(),
        tpot_target_us: numbers.u64(),
        totals: Totals {
            steps: numbers.u64(),
            refused_steps: numbers.u64(),
            arrivals: numbers.u64(),
            arrived_prompt_tokens: numbers.u64(),
            completions: numbers.u64(),
            completed_output_tokens: numbers.u64(),
            preemptions: numbers.u64(),
            swapped_blocks: numbers.u64(),
            tokens: numbers.u64(),
        },
    }
}

fn running(numbers: &mut Numbers<'_>) -> RunningRequest {
    RunningRequest {
        tokens: numbers.u32(),
        computed_tokens: numbers.u32(),
        generated_tokens: numbers.u32(),
        held_blocks: numbers.u32(),
        deadline_us: numbers.u64(),
    }
}

fn waiting(numbers: &mut Numbers<'_>) -> WaitingRequest {
    WaitingRequest {
        tokens: numbers.u32(),
        arrival_us: numbers.u64(),
        first_token_deadline_us: (numbers.small(4) > 0).then(|| numbers.u64()),
        prefill_us: numbers.u64(),
    }
}
