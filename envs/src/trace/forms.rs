//! The forms a trace may have: one table, which detection, errors, help, documentation and tests all read.
//!
//! A form is recognised by what is in the file: its first bytes, the names in its header, the keys of its first object. The first
//! entry that recognises a file reads it. To add a form: an entry here, a variant of [`Format`], and a `RowSource`.

use super::azure::Columns;
use super::bailian::Chats;
use super::bench::Run;
use super::clock::TimeUnit;
use super::error::{Fault, TraceError, Unknown, excerpt};
use super::fields::{self, Role};
use super::items::{self, Layout};
use super::lines::{Lines, Parser};
use super::objects::{self, Objects};
use super::reading::Reading;
use super::sessions::Sessions;
use super::source::{MAX_LINE_BYTES, Opened, START_BYTES};
use super::table::{self, Table};
use super::{Format, RateProfile, RowSource, ServeGen, archive, kvct, servegen};

/// One form.
pub struct Form {
    /// Which.
    pub format: Format,
    /// What it is told by, for people.
    pub told_by: &'static str,
    /// Two rows of it, or one whole file, line by line; empty where it is more than a file of text.
    pub sample: &'static [&'static str],
    /// What it cannot do without.
    needs: Needs,
    recognise: fn(&Start) -> bool,
    pub(super) reads: Reads,
    /// Rows come sorted, and counted, whatever the order of the file.
    pub(super) sorts_itself: bool,
}

/// What a form cannot do without, to tell which one an unknown file is nearest to.
enum Needs {
    /// These columns, under exactly these names.
    Columns(&'static [&'static str]),
    /// Columns of these meanings.
    AnyColumns(&'static [Role]),
    /// These keys.
    Keys(&'static [&'static str]),
    /// Keys of these meanings.
    AnyKeys(&'static [Role]),
    /// More than can be told by names.
    More,
}

/// Opens a file whose start was looked at.
pub(super) type OpenRows = fn(Opened, &Start, &Reading) -> Result<Box<dyn RowSource>, TraceError>;

/// How a form is read.
pub(super) enum Reads {
    Rows(OpenRows),
    Clients(fn(Opened) -> Result<ServeGen, TraceError>),
    Profile(fn(Opened) -> Result<RateProfile, TraceError>),
}

/// A time and two lengths.
const REQUEST: &[Role] = &[Role::Time, Role::Prompt, Role::Output];

/// Every form that is known; of several that recognise a file, the first.
pub static FORMS: [Form; 13] = [
    Form {
        format: Format::ServeGen,
        told_by: "a folder, or a tar archive, of chunk-N-trace.csv and chunk-N-dataset.json",
        sample: &[],
        needs: Needs::More,
        recognise: |start| archive::recognise(&start.bytes) && servegen::recognise(&start.bytes),
        reads: Reads::Clients(ServeGen::read_archive),
        sorts_itself: false,
    },
    Form {
        format: Format::Sessions,
        told_by: "a JSON object with requests and block_size or hash_id_scope; a tar archive of such files",
        sample: &[
            r#"{"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 374, "out": 44}, {"t": 2.5, "in": 420, "out": 9}]}"#,
        ],
        needs: Needs::Keys(&["id", "block_size", "requests"]),
        recognise: |start| archive::recognise(&start.bytes) || kvct::recognise(&start.bytes),
        reads: Reads::Rows(|opened, _, reading| Ok(Box::new(Sessions::read(opened, &reading.sessions)?))),
        sorts_itself: true,
    },
    Form {
        format: Format::Profile,
        told_by: "a JSON object with kvtide_profile, as kvtide record writes it",
        sample: &[],
        needs: Needs::More,
        recognise: |start| start.has_key("kvtide_profile"),
        reads: Reads::Profile(RateProfile::read),
        sorts_itself: false,
    },
    Form {
        format: Format::VllmBench,
        told_by: "a JSON object with input_lens, as vllm bench serve --save-result --save-detailed writes it",
        sample: &[
            r#"{"duration": 9.5, "input_lens": [374, 420], "output_lens": [44, 9], "start_times": [81.5, 84.0], "errors": ["", ""]}"#,
        ],
        needs: Needs::Keys(&["input_lens", "output_lens", "start_times"]),
        recognise: |start| !start.is_array() && bench_keys(start),
        reads: Reads::Rows(|opened, _, reading| Ok(Box::new(Run::open(opened, reading)?))),
        sorts_itself: true,
    },
    Form {
        format: Format::Canonical,
        told_by: "JSON objects with arrival_us",
        sample: &[
            r#"{"arrival_us": 0, "prompt_tokens": 374, "output_tokens": 44}"#,
            r#"{"arrival_us": 2500000, "prompt_tokens": 420, "output_tokens": 9}"#,
        ],
        needs: Needs::Keys(&["arrival_us", "prompt_tokens", "output_tokens"]),
        recognise: |start| start.has_key("arrival_us"),
        reads: Reads::Rows(|opened, start, _| Ok(Box::new(Lines::new(opened, start.layout(), Parser::Canonical)))),
        sorts_itself: false,
    },
    Form {
        format: Format::Bailian,
        told_by: "JSON objects with chat_id, parent_chat_id, input_length and output_length, and timestamp in seconds",
        sample: &[
            r#"{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 374, "output_length": 44, "type": "text", "turn": 1}"#,
            r#"{"chat_id": 2, "parent_chat_id": 1, "timestamp": 2.5, "input_length": 420, "output_length": 9, "type": "text", "turn": 2}"#,
        ],
        needs: Needs::Keys(&["chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"]),
        recognise: |start| start.has_key("parent_chat_id") && start.has_key("input_length"),
        reads: Reads::Rows(|opened, start, _| {
            Ok(Box::new(Lines::new(opened, start.layout(), Parser::Bailian(Chats::default()))))
        }),
        sorts_itself: false,
    },
    Form {
        format: Format::Mooncake,
        told_by: "JSON objects with input_length, output_length or hash_ids, and timestamp in milliseconds",
        sample: &[
            r#"{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [0]}"#,
            r#"{"timestamp": 2500, "input_length": 420, "output_length": 9, "hash_ids": [1]}"#,
        ],
        needs: Needs::Keys(&["timestamp", "input_length", "output_length"]),
        recognise: is_mooncake,
        reads: Reads::Rows(|opened, start, _| Ok(Box::new(Lines::new(opened, start.layout(), Parser::Mooncake)))),
        sorts_itself: false,
    },
    Form {
        format: Format::ProxyLog,
        told_by: "JSON objects with lengths in usage, or with startTime",
        sample: &[
            r#"{"startTime": "2026-01-05T09:00:00Z", "end_user": "a", "usage": {"prompt_tokens": 374, "completion_tokens": 44}}"#,
            r#"{"startTime": "2026-01-05T09:00:02.5Z", "end_user": "b", "usage": {"prompt_tokens": 420, "completion_tokens": 9}}"#,
        ],
        needs: Needs::Keys(&["startTime", "usage"]),
        recognise: |start| {
            let keys = start.keys();
            let in_usage = objects::reachable(keys).any(|key| key.split('.').any(|part| fields::same("usage", part)));
            objects::has_lengths(keys) && (in_usage || keys.iter().any(|key| key == "startTime"))
        },
        reads: Reads::Rows(objects),
        sorts_itself: false,
    },
    Form {
        format: Format::Conversations,
        told_by: "JSON objects with conversations or messages, without lengths of the whole",
        sample: &[
            r#"{"id": "a", "timestamp": 1767603600, "conversations": [{"from": "human", "tokens": 374}, {"from": "gpt", "tokens": 44}]}"#,
            r#"{"id": "b", "timestamp": 1767603602.5, "conversations": [{"from": "human", "tokens": 420}, {"from": "gpt", "tokens": 9}]}"#,
        ],
        needs: Needs::Keys(&["timestamp", "conversations"]),
        recognise: |start| {
            let has_counts = |role| objects::reachable(start.keys()).any(|key| fields::is(role, key));
            objects::has_turns(start.keys()) && !(has_counts(Role::Prompt) && has_counts(Role::Output))
        },
        reads: Reads::Rows(objects),
        sorts_itself: false,
    },
    Form {
        format: Format::Objects,
        told_by: "JSON objects with keys that are usual for a time and two lengths",
        sample: &[
            r#"{"timestamp": 1767603600.0, "prompt_tokens": 374, "completion_tokens": 44}"#,
            r#"{"timestamp": 1767603602.5, "prompt_tokens": 420, "completion_tokens": 9}"#,
        ],
        needs: Needs::AnyKeys(REQUEST),
        recognise: |start| objects::has_lengths(start.keys()),
        reads: Reads::Rows(objects),
        sorts_itself: false,
    },
    Form {
        format: Format::Azure,
        told_by: "a CSV header with TIMESTAMP, ContextTokens and GeneratedTokens",
        sample: &[
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-16 18:15:46.6805900,374,44",
            "2023-11-16 18:15:49.1805900,420,9",
        ],
        needs: Needs::Columns(&Columns::NAMES),
        recognise: |start| start.has_columns(&Columns::NAMES) && start.delimiter() == Some(b','),
        reads: Reads::Rows(|opened, _, _| Ok(Box::new(Lines::with_header(opened)?))),
        sorts_itself: false,
    },
    Form {
        format: Format::BurstGpt,
        told_by: "a CSV header with Timestamp, Request tokens and Response tokens; seconds",
        sample: &[
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "5,ChatGPT,374,44,418,Conversation log",
            "7.5,GPT-4,420,9,429,API log",
        ],
        needs: Needs::Columns(&BURST_GPT),
        recognise: |start| start.has_columns(&BURST_GPT),
        reads: Reads::Rows(|opened, _, reading| Ok(Box::new(Table::open(opened, reading, Some(TimeUnit::Seconds))?))),
        sorts_itself: false,
    },
    Form {
        format: Format::Csv,
        told_by: "a header with names that are usual for a time and two lengths; comma, semicolon, tab or |",
        sample: &["timestamp,prompt_tokens,completion_tokens", "1767603600.0,374,44", "1767603602.5,420,9"],
        needs: Needs::AnyColumns(REQUEST),
        recognise: |start| {
            let has = |role| start.columns().iter().any(|name| fields::is(role, name));
            has(Role::Prompt) && has(Role::Output) || has(Role::PromptText) && has(Role::OutputText)
        },
        reads: Reads::Rows(|opened, _, reading| Ok(Box::new(Table::open(opened, reading, None)?))),
        sorts_itself: false,
    },
];

/// Columns of `BurstGPT`, of which later files have more.
const BURST_GPT: [&str; 3] = ["Timestamp", "Request tokens", "Response tokens"];

fn objects(opened: Opened, start: &Start, reading: &Reading) -> Result<Box<dyn RowSource>, TraceError> {
    Ok(Box::new(Objects::open(opened, start.layout(), reading)?))
}

fn bench_keys(start: &Start) -> bool {
    super::bench::recognise(start.keys())
}

/// Other traces have lengths of these names as well, but another time.
fn is_mooncake(start: &Start) -> bool {
    let has_other_time = !start.has_key("timestamp") && start.keys().iter().any(|key| fields::is(Role::Time, key));
    start.has_key("hash_ids") || (start.has_key("input_length") || start.has_key("output_length")) && !has_other_time
}

/// Every form, one a line, for help.
pub fn listed() -> String {
    let width = FORMS.iter().map(|form| form.format.to_string().len()).max().unwrap_or(0);
    let line = |form: &Form| format!("  {:width$}  {}\n", form.format.to_string(), form.told_by);
    FORMS.iter().map(line).collect()
}

/// How a file starts.
pub(super) struct Start {
    bytes: Vec<u8>,
    shape: Shape,
}

enum Shape {
    Header { names: Vec<String>, delimiter: u8 },
    Objects { keys: Vec<String>, layout: Layout },
}

impl Start {
    /// Looks at the start of a file, as far as is needed to see the whole of its first row.
    pub(super) fn of(opened: Opened) -> Result<(Start, Opened), TraceError> {
        let mut opened = opened;
        let is_cut = |text: &str| text.is_empty() || is_json(text) && !items::layout(text).1;
        if opened.start.len() >= START_BYTES && is_cut(&opened.text()) {
            opened = opened.look_further()?;
        }
        let text = opened.text();
        let shape = if is_json(&text) {
            Shape::Objects { keys: items::keys(&text), layout: items::layout(&text).0 }
        } else {
            let (names, delimiter) = table::header(text.lines().next().unwrap_or_default());
            Shape::Header { names, delimiter }
        };
        let bytes = opened.start.clone();
        Ok((Start { bytes, shape }, opened))
    }

    fn keys(&self) -> &[String] {
        if let Shape::Objects { keys, .. } = &self.shape { keys } else { &[] }
    }

    fn has_key(&self, name: &str) -> bool {
        self.keys().iter().any(|key| key == name)
    }

    fn columns(&self) -> &[String] {
        if let Shape::Header { names, .. } = &self.shape { names } else { &[] }
    }

    fn has_columns(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.columns().iter().any(|column| column == name))
    }

    fn delimiter(&self) -> Option<u8> {
        if let Shape::Header { delimiter, .. } = &self.shape { Some(*delimiter) } else { None }
    }

    fn layout(&self) -> Layout {
        if let Shape::Objects { layout, .. } = &self.shape { *layout } else { Layout::Lines }
    }

    fn is_array(&self) -> bool {
        self.layout() == Layout::Array
    }
}

fn is_json(text: &str) -> bool {
    text.starts_with(['{', '['])
}

/// The form of a file.
pub(super) fn recognise(start: &Start, opened: &Opened) -> Result<&'static Form, TraceError> {
    let wrong = |line, fault| TraceError { line, ..TraceError::of_file(&opened.path, fault) };
    if is_utf16(&opened.start) {
        return Err(wrong(None, Fault::Utf16));
    }
    let text = opened.text();
    let form = FORMS.iter().find(|form| (form.recognise)(start));
    if let Some(form) = form.or_else(|| recognise_below(start, &text)) {
        return Ok(form);
    }
    if text.is_empty() || text.trim_end() == "[]" {
        return Err(wrong(None, Fault::Empty));
    }
    let bytes = &opened.start;
    let before = bytes.iter().take_while(|byte| byte.is_ascii_whitespace() || [0xef, 0xbb, 0xbf].contains(*byte));
    let line = Some(before.filter(|byte| **byte == b'\n').count() as u64 + 1);
    let first = text.lines().next().unwrap_or_default();
    if first.len() >= MAX_LINE_BYTES {
        return Err(wrong(line, Fault::LineTooLong(MAX_LINE_BYTES)));
    }
    if first.contains('\u{fffd}') && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_some()) {
        return Err(wrong(line, Fault::NotText(excerpt(first))));
    }
    Err(wrong(line, unknown(start, first)))
}

/// The form of a log whose first lines are no requests but JSON as well, such as what a server says when it starts: the first
/// object that is recognised decides. Only of forms whose rows without lengths are skipped and counted.
fn recognise_below(start: &Start, text: &str) -> Option<&'static Form> {
    if start.keys().is_empty() || start.layout() != Layout::Lines {
        return None;
    }
    let skips = |form: &&Form| [Format::ProxyLog, Format::Objects].contains(&form.format);
    // A line that is cut off by the end of what was looked at ends in no newline.
    let whole = text.split_inclusive('\n').filter(|line| line.starts_with('{') && line.ends_with('\n'));
    whole.skip(1).find_map(|line| {
        let shape = Shape::Objects { keys: items::keys(line), layout: Layout::Lines };
        let start = Start { bytes: Vec::new(), shape };
        FORMS.iter().find(|form| (form.recognise)(&start)).filter(skips)
    })
}

/// Whether bytes are text of two bytes a letter, by its byte-order mark or because every other byte is 0.
fn is_utf16(bytes: &[u8]) -> bool {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => true,
        [a, 0, b, 0, ..] | [0, a, 0, b, ..] => [a, b].iter().all(|byte| **byte != 0 && byte.is_ascii()),
        _ => false,
    }
}

/// What an unknown file is nearest to, and what it lacks.
fn unknown(start: &Start, first: &str) -> Fault {
    let count = |form: &Form| match form.needs.lacked_by(start) {
        Some((all, lacked)) => {
            let found = all - lacked.len();
            // The exact names of a form say more than names that have such a meaning.
            Some((found, found >= 2 && matches!(form.needs, Needs::Columns(_) | Needs::Keys(_))))
        }
        None => None,
    };
    let nearest = FORMS.iter().filter(|form| count(form).is_some()).max_by_key(|form| count(form));
    let nearest = nearest.unwrap_or(&FORMS[FORMS.len() - 1]);
    let lacked = nearest.needs.lacked_by(start).map_or_else(Vec::new, |(_, lacked)| lacked);
    let missing = if lacked.is_empty() { "lengths that can be read".to_owned() } else { lacked.join(" and ") };
    let sample: Vec<String> = nearest.sample.iter().map(|line| format!("`{line}`")).collect();
    let sample = sample.join(", ");
    Fault::Unknown(Box::new(Unknown { start: excerpt(first), nearest: nearest.format, missing, sample }))
}

impl Needs {
    /// How many things are needed, and those a file lacks; `None` if it is nothing like that.
    fn lacked_by(&self, start: &Start) -> Option<(usize, Vec<String>)> {
        let (is_header, names) = match &start.shape {
            Shape::Header { names, .. } => (true, names),
            Shape::Objects { keys, .. } => (false, keys),
        };
        let lacks = |name: &&&str| !names.iter().any(|found| fields::same(found, name));
        let lacks_role = |role: &&Role| !objects::reachable(names).any(|found| fields::is(**role, found));
        match self {
            Needs::Columns(needed) if is_header => {
                Some((needed.len(), needed.iter().filter(lacks).map(|name| (*name).to_owned()).collect()))
            }
            Needs::Keys(needed) if !is_header => {
                Some((needed.len(), needed.iter().filter(lacks).map(|name| (*name).to_owned()).collect()))
            }
            Needs::AnyColumns(roles) if is_header => {
                Some((roles.len(), roles.iter().filter(lacks_role).map(|role| fields::wanted(*role)).collect()))
            }
            Needs::AnyKeys(roles) if !is_header => {
                Some((roles.len(), roles.iter().filter(lacks_role).map(|role| fields::wanted(*role)).collect()))
            }
            _ => None,
        }
    }
}
