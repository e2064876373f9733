//! Events as they are mostly written, read in one pass over their bytes: an event is a line of some 700 of them, and its names and numbers
//! stand there as they are needed.
//!
//! Whatever is unusual ends this and is nobody's fault yet: an escape, an exponent, a key that is there twice, an object where none is
//! known, anything that is wrong. The answer is `None` then, and `serde_json` says what it is, or what is wrong with it. What is read here, it
//! reads alike.

use std::borrow::Cow;

use kvtide_rules::intent::{Phase, Priority, Tier, Tiers};

use super::event::EventKind;
use super::read::{RawEvent, RawIntent};

/// What stands behind a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Field {
    /// One that nobody asks for.
    Other,
    /// The fields of the intent, which are no value by themselves.
    Intent,
    // Those that are needed.
    Step,
    EventType,
    ObjectId,
    RequestId,
    Phase,
    Priority,
    AllowedTiers,
    CurrentTier,
    SizeBytes,
    // Those that may be left out.
    RequestPriority,
    RecencyScore,
    DeadlineUs,
    SlackUs,
    TargetDecodeStep,
    ExpectedReuseWindowTokens,
    RecomputeCostUs,
    SpillCostUs,
    LastAccessStep,
    CompressionOk,
    RecomputeOk,
    PrefetchOk,
    PinRequested,
    IsDraft,
    IsCommitted,
}

/// Bits of the fields that an event must have: from the step to the size.
const NEEDED: u32 = (1 << (Field::SizeBytes as u32 + 1)) - (1 << Field::Step as u32);

impl Field {
    /// That of an event.
    fn of_event(key: &str) -> Field {
        match key {
            "step" => Field::Step,
            "event_type" => Field::EventType,
            "intent" => Field::Intent,
            _ => Field::Other,
        }
    }

    /// That of an intent.
    fn of_intent(key: &str) -> Field {
        match key {
            "object_id" => Field::ObjectId,
            "request_id" => Field::RequestId,
            "phase" => Field::Phase,
            "priority" => Field::Priority,
            "allowed_tiers" => Field::AllowedTiers,
            "current_tier" => Field::CurrentTier,
            "size_bytes" => Field::SizeBytes,
            "request_priority" => Field::RequestPriority,
            "recency_score" => Field::RecencyScore,
            "deadline_us" => Field::DeadlineUs,
            "slack_us" => Field::SlackUs,
            "target_decode_step" => Field::TargetDecodeStep,
            "expected_reuse_window_tokens" => Field::ExpectedReuseWindowTokens,
            "recompute_cost_us" => Field::RecomputeCostUs,
            "spill_cost_us" => Field::SpillCostUs,
            "last_access_step" => Field::LastAccessStep,
            "compression_ok" => Field::CompressionOk,
            "recompute_ok" => Field::RecomputeOk,
            "prefetch_ok" => Field::PrefetchOk,
            "pin_requested" => Field::PinRequested,
            "is_draft" => Field::IsDraft,
            "is_committed" => Field::IsCommitted,
            _ => Field::Other,
        }
    }
}

/// Reads lines, and remembers how the last was written: what stands between its values, which is the same in the next if one program wrote
/// both. Then it is compared as a whole, and no key is looked up.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// What stands before each value, one after the other; then what stands behind the last.
    between: Vec<u8>,
    /// Where that ends, and what value it is.
    values: Vec<(usize, Field)>,
}

impl Scanner {
    /// The event of a line, if it is written as most are.
    pub(super) fn event<'a>(&mut self, line: &'a str) -> Option<RawEvent<'a>> {
        self.as_before(line).or_else(|| self.anew(line))
    }

    /// Of a line that is written as the last was.
    fn as_before<'a>(&self, line: &'a str) -> Option<RawEvent<'a>> {
        let (mut scan, mut event, mut from) = (Scan { text: line, at: 0 }, blank(), 0);
        for &(to, field) in &self.values {
            scan.bytes(&self.between[from..to])?;
            scan.value(field, &mut event)?;
            from = to;
        }
        (from > 0 && line.as_bytes()[scan.at..] == self.between[from..]).then_some(event)
    }

    /// Of a line that is written in any way, which is remembered.
    fn anew<'a>(&mut self, line: &'a str) -> Option<RawEvent<'a>> {
        self.between.clear();
        self.values.clear();
        let (mut scan, mut event, mut seen) = (Scan { text: line, at: 0 }, blank(), 0);
        let mut done = 0;
        let mut value = |scan: &mut Scan<'a>, field: Field| {
            self.between.extend_from_slice(&line.as_bytes()[done..scan.at]);
            self.values.push((self.between.len(), field));
            scan.value(field, &mut event)?;
            done = scan.at;
            first_time(&mut seen, field)
        };
        let mut intents = 0;
        let read = scan.object(|scan, key| match Field::of_event(key) {
            Field::Intent => {
                intents += 1;
                scan.object(|scan, key| value(scan, Field::of_intent(key)))
            }
            field => value(scan, field),
        });
        scan.skip_space();
        let is_whole = read.is_some() && scan.at == line.len() && intents == 1 && seen & NEEDED == NEEDED;
        if is_whole {
            self.between.extend_from_slice(&line.as_bytes()[done..]);
        } else {
            self.values.clear();
        }
        is_whole.then_some(event)
    }
}

/// `None` if a field that is known has been there before.
fn first_time(seen: &mut u32, field: Field) -> Option<()> {
    let bit = 1 << field as u8;
    let is_first = *seen & bit == 0;
    *seen |= bit;
    (is_first || field == Field::Other).then_some(())
}

/// An event before anything is known of it.
fn blank<'a>() -> RawEvent<'a> {
    let intent = RawIntent {
        object_id: Cow::Borrowed(""),
        request_id: Cow::Borrowed(""),
        phase: Phase::Idle,
        priority: Priority::Cold,
        allowed_tiers: Tiers::default(),
        current_tier: Tier::Hbm,
        size_bytes: 0,
        request_priority: None,
        recency_score: None,
        deadline_us: None,
        slack_us: None,
        target_decode_step: None,
        expected_reuse_window_tokens: None,
        recompute_cost_us: None,
        spill_cost_us: None,
        last_access_step: None,
        compression_ok: None,
        recompute_ok: None,
        prefetch_ok: None,
        pin_requested: None,
        is_draft: None,
        is_committed: None,
    };
    RawEvent { step: 0, event_type: EventKind::Miss, intent }
}

/// A text, and how far it has been read.
struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    /// The value of a field, put in its place.
    #[inline]
    fn value(&mut self, field: Field, event: &mut RawEvent<'a>) -> Option<()> {
        let intent = &mut event.intent;
        match field {
            Field::Intent => return None,
            Field::Other => self.pass_over()?,
            Field::Step => event.step = self.count()?,
            Field::EventType => event.event_type = EventKind::named(self.string()?)?,
            Field::ObjectId => intent.object_id = Cow::Borrowed(self.string()?),
            Field::RequestId => intent.request_id = Cow::Borrowed(self.string()?),
            Field::Phase => intent.phase = Phase::named(self.string()?)?,
            Field::Priority => intent.priority = Priority::named(self.string()?)?,
            Field::AllowedTiers => intent.allowed_tiers = self.tiers()?,
            Field::CurrentTier => intent.current_tier = Tier::named(self.string()?)?,
            Field::SizeBytes => intent.size_bytes = self.count()?,
            Field::RequestPriority => self.perhaps(&mut intent.request_priority, Scan::small_count)?,
            Field::RecencyScore => self.perhaps(&mut intent.recency_score, Scan::number)?,
            Field::SlackUs => self.perhaps(&mut intent.slack_us, Scan::whole)?,
            Field::DeadlineUs => self.perhaps(&mut intent.deadline_us, Scan::count)?,
            Field::TargetDecodeStep => self.perhaps(&mut intent.target_decode_step, Scan::count)?,
            Field::ExpectedReuseWindowTokens => self.perhaps(&mut intent.expected_reuse_window_tokens, Scan::count)?,
            Field::RecomputeCostUs => self.perhaps(&mut intent.recompute_cost_us, Scan::count)?,
            Field::SpillCostUs => self.perhaps(&mut intent.spill_cost_us, Scan::count)?,
            Field::LastAccessStep => self.perhaps(&mut intent.last_access_step, Scan::count)?,
            Field::CompressionOk => self.perhaps(&mut intent.compression_ok, Scan::flag)?,
            Field::RecomputeOk => self.perhaps(&mut intent.recompute_ok, Scan::flag)?,
            Field::PrefetchOk => self.perhaps(&mut intent.prefetch_ok, Scan::flag)?,
            Field::PinRequested => self.perhaps(&mut intent.pin_requested, Scan::flag)?,
            Field::IsDraft => self.perhaps(&mut intent.is_draft, Scan::flag)?,
            Field::IsCommitted => self.perhaps(&mut intent.is_committed, Scan::flag)?,
        }
        Some(())
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// The next byte that is no space, if it is that one.
    #[inline]
    fn mark(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// An object that has something in it: `each` reads the value of a key.
    #[inline]
    fn object(&mut self, mut each: impl FnMut(&mut Scan<'a>, &'a str) -> Option<()>) -> Option<()> {
        self.mark(b'{')?;
        loop {
            self.skip_space();
            let key = self.string()?;
            self.mark(b':')?;
            self.skip_space();
            each(self, key)?;
            if self.mark(b',').is_none() {
                return self.mark(b'}');
            }
        }
    }

    /// A value that nobody asks for, if it is no object or list.
    fn pass_over(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'n' => self.bytes(b"null"),
            b't' | b'f' => self.flag().map(drop),
            _ => self.number().map(drop),
        }
    }

    /// A text without escapes.
    #[inline]
    fn string(&mut self) -> Option<&'a str> {
        let start = self.at + 1;
        let from_quote = self.text.as_bytes().get(self.at..)?;
        let length = match from_quote.split_first()? {
            (b'"', rest) => before_quote(rest)?,
            _ => return None,
        };
        self.at = start + length + 1;
        self.text.get(start..start + length)
    }

    #[inline]
    fn bytes(&mut self, expected: &[u8]) -> Option<()> {
        let is_there = self.text.as_bytes().get(self.at..)?.starts_with(expected);
        is_there.then(|| self.at += expected.len())
    }

    /// A value put in its place, or `null`.
    #[inline]
    fn perhaps<T>(&mut self, place: &mut Option<T>, value: impl FnOnce(&mut Scan<'a>) -> Option<T>) -> Option<()> {
        if self.peek()? == b'n' {
            return self.bytes(b"null");
        }
        *place = Some(value(self)?);
        Some(())
    }

    #[inline]
    fn flag(&mut self) -> Option<bool> {
        if self.peek()? == b't' { self.bytes(b"true").map(|()| true) } else { self.bytes(b"false").map(|()| false) }
    }

    /// Digits, as a number and how many.
    #[inline]
    fn digits(&mut self) -> (u64, usize) {
        let (start, mut value) = (self.at, 0_u64);
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.at += 1;
        }
        (value, self.at - start)
    }

    /// Digits that are a whole number by themselves, which at most 19 of them certainly are.
    #[inline]
    fn natural(&mut self) -> Option<u64> {
        let has_zero = self.peek()? == b'0';
        let (value, digits) = self.digits();
        (digits == 1 || (!has_zero && (2..=19).contains(&digits))).then_some(value)
    }

    /// A whole number, not negative.
    #[inline]
    fn count(&mut self) -> Option<u64> {
        let value = self.natural()?;
        (!matches!(self.peek(), Some(b'.' | b'e' | b'E'))).then_some(value)
    }

    fn small_count(&mut self) -> Option<u32> {
        self.count()?.try_into().ok()
    }

    /// A whole number.
    #[inline]
    fn whole(&mut self) -> Option<i64> {
        if self.peek()? != b'-' {
            return self.count()?.try_into().ok();
        }
        self.at += 1;
        let value = i64::try_from(self.count()?).ok()?;
        // Minus nothing is no whole number to serde_json.
        (value > 0).then_some(-value)
    }

    /// A number of at most fifteen digits: those are exact, as are powers of ten, so that their quotient is the number nearest to what is
    /// written.
    fn number(&mut self) -> Option<f64> {
        const POWERS: [f64; 16] =
            [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
        const MOST: u64 = 1_000_000_000_000_000;
        let is_negative = self.peek()? == b'-';
        self.at += usize::from(is_negative);
        let start = self.at;
        let mut value = self.natural()?;
        let mut after_point = 0;
        if self.peek() == Some(b'.') {
            self.at += 1;
            let (part, digits) = self.digits();
            if digits == 0 || self.at - start > 16 {
                return None;
            }
            (value, after_point) = (value * 10_u64.pow(digits as u32) + part, digits);
        }
        if value >= MOST || matches!(self.peek(), Some(b'e' | b'E')) {
            return None;
        }
        let value = value as f64 / POWERS[after_point];
        Some(if is_negative { -value } else { value })
    }

    fn tiers(&mut self) -> Option<Tiers> {
        let mut tiers = Tiers::default();
        self.mark(b'[')?;
        loop {
            self.skip_space();
            tiers = tiers.with(Tier::named(self.string()?)?);
            if self.mark(b',').is_none() {
                return self.mark(b']').map(|()| tiers);
            }
        }
    }
}

/// Bytes before a quote, eight at a time; `None` if an escape or a control character comes first, or no quote at all.
#[inline]
fn before_quote(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    // The high bit of every byte that is less than `limit`, and of none before the first that is.
    let less = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH;
    let (words, rest) = bytes.as_chunks::<8>();
    let mut at = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let ends =
            less(word ^ (ONES * u64::from(b'"')), 1) | less(word ^ (ONES * u64::from(b'\\')), 1) | less(word, 0x20);
        if ends != 0 {
            at += (ends.trailing_zeros() / 8) as usize;
            return (bytes[at] == b'"').then_some(at);
        }
        at += 8;
    }
    at += rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
    (bytes[at] == b'"').then_some(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::intent::ProfileSpec;

    /// Lines as they are written here, and by whoever puts no spaces or other fields in.
    fn lines() -> Vec<String> {
        let spec: ProfileSpec = "speculative_decode:requests=4,blocks=3,turns=12".parse().unwrap();
        let mut text = Vec::new();
        spec.events().for_each(|event| event.write(&mut text).unwrap());
        let text = String::from_utf8(text).unwrap();
        let mut lines: Vec<String> = text.lines().step_by(5).map(ToOwned::to_owned).collect();
        lines.push(lines[0].replace(':', ": ").replace(',', " , ").replace('{', "{ "));
        lines.push(lines[1].replace("\"step\"", "\"latency_us\": -12.50, \"new\": false, \"step\""));
        lines
    }

    fn event(line: &str) -> Option<RawEvent<'_>> {
        Scanner::default().event(line)
    }

    fn slowly(line: &str) -> Option<RawEvent<'_>> {
        serde_json::from_str(line).ok()
    }

    #[test]
    fn what_is_written_here_is_read_here() {
        let mut scanner = Scanner::default();
        for line in &lines() {
            let read = event(line);
            assert!(read.is_some(), "{line}");
            assert_eq!(read, slowly(line), "{line}");
            assert_eq!(scanner.event(line), read, "{line}");
            assert_eq!(scanner.as_before(line), read, "{line}");
        }
    }

    #[test]
    fn what_is_unusual_or_wrong_is_left_to_others() {
        let line = &lines()[0];
        for (from, to) in [
            ("\"step\":0", "\"step\":00"),
            ("\"step\":0", "\"step\":0.0"),
            ("\"step\":0", "\"step\":0e0"),
            ("\"step\":0", "\"step\":-0"),
            ("\"step\":0", "\"step\":0,\"step\":0"),
            ("\"step\":0", "\"step\":18446744073709551616"),
            ("\"step\":0", "\"other\":0"),
            ("\"step\":0", "\"step\":0,"),
            ("\"step\":0", "\"step\":0,\"new\":{}"),
            ("\"step\":0", "\"step\":0,\"new\":[1]"),
            ("\"step\":0", "\"step\":0,\"new\":nul"),
            ("\"step\":0", "\"step\":0,\"new\":1."),
            ("\"step\":0", "\"step\":0,\"new\":01"),
            ("\"step\":0", "\"step\":0,\"new\":\"\\n\""),
            ("\"step\":0", "\"step\":0,\"new\":\"\u{1}\""),
            ("\"PREFILL\"", "\"SLEEP\""),
            ("\"PREFILL\"", "{\"PREFILL\":null}"),
            ("\"block_id\":0,", "\"block_id\":0,\"phase\":\"IDLE\","),
            ("\"object_id\"", "\"object\""),
        ] {
            let changed = line.replacen(from, to, 1);
            assert_ne!(&changed, line, "{from}");
            assert_eq!(event(&changed), None, "{changed}");
        }
        assert_eq!(event(&format!("{line} {{}}")), None);
        assert_eq!(event("{}"), None);
        assert_eq!(event(""), None);
    }

    #[test]
    fn numbers_are_those_that_are_nearest() {
        for text in
            ["0", "1", "0.1", "0.3", "0.97", "0.12345678901234", "123456789.012345", "99999999999.9999", "-0.70"]
        {
            let number = Scan { text, at: 0 }.number();
            assert_eq!(number, text.parse().ok(), "{text}");
        }
        for text in ["0.1234567890123456", "1234567890123456", "1.", ".5", "01.5", "1e3", "1.5E3", "-", "+1", ""] {
            assert_eq!(Scan { text, at: 0 }.number(), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_changed_line_is_read_as_serde_reads_it_or_not_at_all(
            which in 0..1000_usize,
            changes in prop::collection::vec((0..1000_usize, "[\\\\\"{}\\[\\],: 0-9eE.+\\-atn\u{1}ß]{0,2}", 0..3_usize), 1..4),
        ) {
            let lines = lines();
            let mut line: Vec<char> = lines[which % lines.len()].chars().collect();
            for (place, text, removed) in changes {
                let from = place % line.len();
                let to = (from + removed).min(line.len());
                line.splice(from..to, text.chars());
            }
            let line: String = line.into_iter().collect();
            // After the line it was made of, and by itself.
            let mut scanner = Scanner::default();
            scanner.event(&lines[which % lines.len()]);
            for read in [scanner.event(&line), event(&line)].into_iter().flatten() {
                prop_assert_eq!(Some(read), slowly(&line), "{}", line);
            }
            // What could not be read is not remembered.
            prop_assert!(scanner.event(&lines[0]).is_some());
        }

        #[test]
        fn any_fraction_is_the_one_nearest(whole in 0..1000_u64, part in "[0-9]{1,12}") {
            let text = format!("{whole}.{part}");
            prop_assert_eq!(Scan { text: &text, at: 0 }.number(), text.parse().ok());
        }
    }
}
