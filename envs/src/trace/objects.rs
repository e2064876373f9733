//! Rows that are JSON objects with usual keys: logs of `LiteLLM` and other proxies in front of an `OpenAI` interface, conversations
//! in the manner of `ShareGPT`, and whatever else says when a request came and how long it was.
//!
//! Keys are found by their names ([`super::fields`]), in the object and in objects in it that are known to hold them (`usage`,
//! `response`, `metadata`, …). Of two that could be the same, the one that lies less deep is taken; of two that lie equally deep and
//! differ, neither: that is an error.
//!
//! A conversation whose turns have times is a request for each answer: it arrives when the turn before the answer does, and its
//! prompt is all that came before. Of a conversation that has one time only the first exchange can be told, as in vLLM's own
//! benchmarks; later turns are counted and left out.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value};

use super::clock::TimeUnit;
use super::entry::{Entries, Field, Fields, says_failed};
use super::error::{Fault, TraceError};
use super::fields::{self, CONTAINERS, MAX_DEPTH, Meaning, Role};
use super::items::{Items, Layout};
use super::jsonl;
use super::reading::{Reading, Skipped};
use super::source::Opened;
use super::{Row, RowSource};

/// Most names whose meaning is kept in mind.
const MAX_KNOWN: usize = 4_096;

/// How deep text is looked for in a value.
const MAX_TEXT_DEPTH: usize = 16;

/// Who answers, as logs of conversations call it.
const ANSWERERS: [&str; 7] = ["gpt", "assistant", "model", "bot", "chatgpt", "ai", "completion"];

/// Names of parts of a turn.
const SPEAKER: [&str; 3] = ["from", "role", "author"];
const SAID: [&str; 3] = ["value", "content", "text"];
const COUNTED: [&str; 5] = ["tokens", "num_tokens", "n_tokens", "token_count", "num_toks"];

/// Rows of a file of objects.
pub(super) struct Objects {
    items: Items,
    text: String,
    known: Known,
    entries: Entries,
    /// Requests of a conversation that have not been asked for.
    waiting: VecDeque<Row>,
}

impl Objects {
    pub(super) fn open(opened: Opened, layout: Layout, reading: &Reading) -> Result<Objects, TraceError> {
        let items = Items::new(opened, layout);
        let entries = Entries::new(reading, None).map_err(|fault| items.file_error(fault))?;
        let known = Known::default();
        Ok(Objects { items, text: String::new(), known, entries, waiting: VecDeque::new() })
    }

    fn read(&mut self) -> Result<(), Fault> {
        let object: Map<String, Value> = jsonl::object(&self.text, "{}", &[])?;
        let mut leaves = Leaves::default();
        leaves.gather(&object, None, 0, &mut self.known);
        let mut fields = leaves.fields()?;
        let turns = leaves.best(Role::Turns)?.and_then(|leaf| leaf.value.as_array());
        let turns = turns.filter(|turns| !turns.is_empty() && turns.iter().all(is_turn));
        match turns {
            Some(turns) if fields.prompt.is_none() && fields.output.is_none() && answers(turns) > 0 => {
                fields.session = fields.session.or_else(|| object.get("id").map(|id| field("id", id)));
                self.conversation(&fields, turns)
            }
            _ => {
                self.waiting.extend(self.entries.row(&fields)?);
                Ok(())
            }
        }
    }

    fn conversation(&mut self, whole: &Fields, turns: &[Value]) -> Result<(), Fault> {
        let is_timed = turns.iter().any(|turn| time(turn).is_some());
        let mut before = 0_u64;
        let mut asked = None;
        let mut is_first = true;
        for turn in turns {
            let tokens = self.tokens(turn)?;
            let is_answer = is_answer(turn);
            if is_answer && !is_timed && !is_first {
                self.entries.skipped.without_time += 1;
            } else if is_answer {
                let length = |tokens: u64| {
                    Some(Field { name: "tokens of a turn".into(), text: Some(tokens.to_string().into()) })
                };
                let fields = Fields {
                    time: if is_timed { asked.clone().or_else(|| time(turn)) } else { whole.time.clone() },
                    prompt: length(before),
                    output: length(tokens),
                    session: whole.session.clone(),
                    tenant: whole.tenant.clone(),
                    priority: whole.priority.clone(),
                    slo_class: whole.slo_class.clone(),
                    cache_salt: whole.cache_salt.clone(),
                    is_failed: whole.is_failed,
                    ..Fields::default()
                };
                self.waiting.extend(self.entries.row(&fields)?);
                is_first = false;
            }
            asked = time(turn);
            before = before.saturating_add(tokens);
        }
        Ok(())
    }

    /// Tokens of a turn: counted, or by its characters.
    fn tokens(&self, turn: &Value) -> Result<u64, Fault> {
        match part(turn, &COUNTED) {
            Some(Value::Null) | None => self.entries.tokens_of_text(part(turn, &SAID).map_or(0, |said| chars(said, 0))),
            Some(Value::Array(ids)) => Ok(ids.len() as u64),
            Some(count) => {
                let wrong = || {
                    Fault::Row(format!(
                        "tokens of a turn `{}` is not a whole number",
                        super::excerpt(&count.to_string())
                    ))
                };
                count.as_u64().ok_or_else(wrong)
            }
        }
    }
}

impl RowSource for Objects {
    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        loop {
            if let Some(row) = self.waiting.pop_front() {
                return Ok(Some(row));
            }
            if !self.items.next(&mut self.text)? {
                return Ok(None);
            }
            self.read().map_err(|fault| self.items.error(fault))?;
        }
    }

    fn error(&self, fault: Fault) -> TraceError {
        self.items.error(fault)
    }

    fn skipped(&self) -> Skipped {
        self.entries.skipped
    }

    fn clock(&self) -> Option<String> {
        self.entries.told()
    }
}

/// Whether keys are those of objects that can be read: lengths, or text to estimate them by.
pub(super) fn has_lengths(keys: &[String]) -> bool {
    let has = |role| reachable(keys).any(|key| fields::is(role, key));
    has(Role::Prompt) && has(Role::Output) || has(Role::PromptText) && has(Role::OutputText)
}

/// Whether keys are those of a conversation.
pub(super) fn has_turns(keys: &[String]) -> bool {
    let is_turns = |key: &String| fields::is(Role::Turns, key);
    let turns = reachable(keys).filter(|key| is_turns(key));
    turns.into_iter().any(|turns| SPEAKER.iter().any(|speaker| keys.contains(&format!("{turns}.{speaker}"))))
}

/// Keys that are looked at: those of the object itself, and of objects that are known to hold some.
pub(super) fn reachable(keys: &[String]) -> impl Iterator<Item = &String> {
    keys.iter().filter(|key| {
        let parents = key.rsplit_once('.').map_or("", |(parents, _)| parents);
        // A key may have dots of its own, as in OpenTelemetry's; what stands before them is no container then, and is let pass.
        parents.split('.').all(|parent| parent.is_empty() || is_container(parent) || parent == "gen_ai")
    })
}

fn is_container(name: &str) -> bool {
    CONTAINERS.iter().any(|container| fields::same(container, name))
}

/// What names mean, looked up once.
#[derive(Default)]
struct Known {
    meanings: BTreeMap<String, (Vec<Meaning>, bool)>,
}

impl Known {
    /// The meanings of a name, and whether what stands under it is looked into.
    fn of(&mut self, name: &str) -> (Vec<Meaning>, bool) {
        if let Some(known) = self.meanings.get(name) {
            return known.clone();
        }
        let found = (fields::meanings(name), is_container(name));
        if self.meanings.len() < MAX_KNOWN {
            self.meanings.insert(name.to_owned(), found.clone());
        }
        found
    }
}

/// A value that means something.
struct Leaf<'a> {
    role: Role,
    /// Preferred: less rank, then less depth.
    order: (u32, usize),
    unit: Option<TimeUnit>,
    path: Cow<'a, str>,
    value: &'a Value,
}

/// Every value of an object that means something.
#[derive(Default)]
struct Leaves<'a> {
    found: Vec<Leaf<'a>>,
}

impl<'a> Leaves<'a> {
    fn gather(&mut self, object: &'a Map<String, Value>, parents: Option<&str>, depth: usize, known: &mut Known) {
        for (name, value) in object {
            let (meanings, is_container) = known.of(name);
            let path = || parents.map_or(Cow::Borrowed(name.as_str()), |parents| format!("{parents}.{name}").into());
            for Meaning { role, rank, unit } in meanings {
                let order = if matches!(role, Role::Prompt | Role::Output) { (0, depth) } else { (rank, depth) };
                self.found.push(Leaf { role, order, unit, path: path(), value });
            }
            if let Some(inner) = value.as_object().filter(|_| is_container && depth < MAX_DEPTH) {
                self.gather(inner, Some(&path()), depth + 1, known);
            }
        }
    }

    fn all(&self, role: Role) -> impl Iterator<Item = &Leaf<'a>> {
        self.found.iter().filter(move |leaf| leaf.role == role)
    }

    /// The one that is preferred.
    fn best(&self, role: Role) -> Result<Option<&Leaf<'a>>, Fault> {
        // What is null may be given in another place.
        let Some(best) = self.all(role).min_by_key(|leaf| (leaf.value.is_null(), leaf.order)) else { return Ok(None) };
        // Of what is only a name, any will do.
        let matters = matches!(role, Role::Time | Role::Prompt | Role::Output);
        let contradicts =
            |leaf: &&Leaf| matters && leaf.order == best.order && leaf.value != best.value && !leaf.value.is_null();
        match self.all(role).find(contradicts) {
            None => Ok(Some(best)),
            Some(other) => Err(Fault::Ambiguous {
                first: super::excerpt(&best.path).into(),
                second: super::excerpt(&other.path).into(),
                meaning: fields::meaning(role),
            }),
        }
    }

    fn fields(&self) -> Result<Fields<'a>, Fault> {
        let one = |role| Ok(self.best(role)?.map(|leaf| Field { name: leaf.path.clone(), ..field("", leaf.value) }));
        // Who sent it may be an object; then it is not told.
        let name = |role| one(role).map(|found: Option<Field>| found.filter(|field| field.text.as_deref() != Some("")));
        let scalar = |role| -> Result<Option<Field<'a>>, Fault> {
            let is_scalar = |leaf: &&Leaf| !leaf.value.is_object() && !leaf.value.is_array();
            if self.best(role)?.is_some_and(|leaf| is_scalar(&leaf)) { name(role) } else { Ok(None) }
        };
        let text = |role| -> Result<Option<u64>, Fault> {
            Ok(self.best(role)?.map(|leaf| chars(leaf.value, 0)).filter(|chars| *chars > 0))
        };
        let outcome = [Role::Failure, Role::Status, Role::Success];
        let time = self.best(Role::Time)?;
        Ok(Fields {
            time: time.map(|leaf| (Field { name: leaf.path.clone(), ..field("", leaf.value) }, leaf.unit)),
            prompt: one(Role::Prompt)?,
            output: one(Role::Output)?,
            cached: self.cached(),
            prompt_chars: text(Role::PromptText)?,
            output_chars: text(Role::OutputText)?,
            session: scalar(Role::Session)?,
            tenant: scalar(Role::Tenant)?,
            priority: scalar(Role::Priority)?,
            slo_class: scalar(Role::SloClass)?,
            cache_salt: scalar(Role::CacheSalt)?,
            is_failed: outcome.into_iter().any(|role| self.all(role).any(|leaf| is_failure(role, leaf.value))),
        })
    }

    /// Prompt tokens beside those of `input_tokens`, in the same object: elsewhere they are part of the prompt's already.
    fn cached(&self) -> Vec<Field<'a>> {
        let parent = |path: &str| path.rsplit_once('.').map(|(parent, _)| parent.to_owned());
        let Ok(Some(prompt)) = self.best(Role::Prompt) else { return Vec::new() };
        let is_beside = |leaf: &&Leaf| parent(&leaf.path) == parent(&prompt.path);
        if !prompt.path.ends_with("input_tokens") {
            return Vec::new();
        }
        let cached = self.all(Role::CachedPrompt).filter(is_beside);
        cached.map(|leaf| Field { name: leaf.path.clone(), ..field("", leaf.value) }).collect()
    }
}

/// A value as a field; what is neither text nor a number is shown as it is written, and is no number.
fn field<'a>(name: &'a str, value: &'a Value) -> Field<'a> {
    let text = match value {
        Value::Null => None,
        Value::String(text) => return Field::of_text(name, text),
        other => Some(other.to_string().into()),
    };
    Field { name: name.into(), text }
}

fn is_failure(role: Role, value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => says_failed(role, text),
        other => says_failed(role, &other.to_string()),
    }
}

/// Characters of text in a value: of a string, of the parts of a list, of what a message says.
fn chars(value: &Value, depth: usize) -> u64 {
    if depth > MAX_TEXT_DEPTH {
        return 0;
    }
    match value {
        Value::String(text) => text.chars().count() as u64,
        Value::Array(parts) => parts.iter().map(|part| chars(part, depth + 1)).sum(),
        Value::Object(object) => {
            let parts = SAID.iter().chain(&["message", "parts", "choices"]);
            parts.filter_map(|name| object.get(*name)).map(|part| chars(part, depth + 1)).sum()
        }
        _ => 0,
    }
}

fn part<'a>(turn: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| turn.get(name))
}

fn is_turn(turn: &Value) -> bool {
    part(turn, &SPEAKER).is_some()
}

fn is_answer(turn: &Value) -> bool {
    let speaker = part(turn, &SPEAKER).and_then(|speaker| speaker.as_str().or_else(|| speaker.get("role")?.as_str()));
    speaker.is_some_and(|speaker| ANSWERERS.contains(&speaker.to_ascii_lowercase().as_str()))
}

fn answers(turns: &[Value]) -> usize {
    turns.iter().filter(|turn| is_answer(turn)).count()
}

fn time(turn: &Value) -> Option<(Field<'_>, Option<TimeUnit>)> {
    let times = turn.as_object()?.iter().flat_map(|(name, value)| {
        let found = fields::meanings(name).into_iter().filter(|found| found.role == Role::Time && !value.is_null());
        found.map(move |found| (found, name, value))
    });
    let (found, name, value) = times.min_by_key(|(found, ..)| found.rank)?;
    Some((field(name, value), found.unit))
}
