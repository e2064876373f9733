//! A request out of the fields of a row, whatever the row was written in.

use std::borrow::Cow;

use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;

use super::clock::{Clock, TimeUnit};
use super::error::{Fault, excerpt};
use super::fields::{Role, wanted};
use super::reading::{CHARS_PER_TOKEN, Reading, Skipped};
use super::{MAX_NAME_BYTES, MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, MAX_RATE_RPS, Request, Row};
use crate::seed;
use crate::time::Micros;

/// One field: its name in the file, and what it holds.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    pub(super) name: Cow<'a, str>,
    /// `None` for nothing, which is written in many ways: see [`Field::of_text`].
    pub(super) text: Option<Cow<'a, str>>,
}

impl<'a> Field<'a> {
    /// Nothing where there is nothing, or a word for it.
    pub(super) fn of_text(name: &'a str, text: &'a str) -> Field<'a> {
        let text = text.trim();
        let is_nothing = ["", "null", "NULL", "None", "\\N"].contains(&text);
        Field { name: name.into(), text: (!is_nothing).then(|| text.into()) }
    }
}

/// The fields of a row that say something of a request.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) time: Option<(Field<'a>, Option<TimeUnit>)>,
    pub(super) prompt: Option<Field<'a>>,
    pub(super) output: Option<Field<'a>>,
    pub(super) cached: Vec<Field<'a>>,
    /// Characters of prompt and answer, where they are there as text.
    pub(super) prompt_chars: Option<u64>,
    pub(super) output_chars: Option<u64>,
    pub(super) session: Option<Field<'a>>,
    pub(super) tenant: Option<Field<'a>>,
    pub(super) priority: Option<Field<'a>>,
    pub(super) slo_class: Option<Field<'a>>,
    pub(super) cache_salt: Option<Field<'a>>,
    pub(super) is_failed: bool,
}

/// Makes requests of rows, and keeps count of those that are none.
pub(super) struct Entries {
    clock: Clock,
    chars_per_token: Option<f64>,
    drawn: Option<Drawn>,
    /// A row had lengths: another without them is skipped and does not need an option.
    has_lengths: bool,
    pub(super) skipped: Skipped,
}

impl Entries {
    /// `unit` is that of times, where the form says so.
    pub(super) fn new(reading: &Reading, unit: Option<TimeUnit>) -> Result<Entries, Fault> {
        if let Some(chars) = reading.chars_per_token.filter(|chars| !CHARS_PER_TOKEN.contains(chars)) {
            let (least, most) = (CHARS_PER_TOKEN.start(), CHARS_PER_TOKEN.end());
            return Err(Fault::Row(format!("{chars} characters per token: must be from {least} to {most}")));
        }
        Ok(Entries {
            clock: Clock::new(reading.time_unit.or(unit)),
            chars_per_token: reading.chars_per_token,
            drawn: reading.arrival_rate.map(|rate| Drawn::new(rate, reading.sessions.seed)).transpose()?,
            has_lengths: false,
            skipped: Skipped::default(),
        })
    }

    /// How times were read, and whether lengths were estimated.
    pub(super) fn told(&self) -> Option<String> {
        match &self.drawn {
            Some(drawn) => Some(format!("drawn, by a Poisson process of {} requests a second", drawn.rate_rps)),
            None => self.clock.told(),
        }
    }

    /// The request of a row; `None` if it is none.
    pub(super) fn row(&mut self, fields: &Fields) -> Result<Option<Row>, Fault> {
        if fields.is_failed {
            self.skipped.failed += 1;
            return Ok(None);
        }
        let Some((prompt, output)) = self.lengths(fields)? else {
            self.skipped.without_lengths += 1;
            return Ok(None);
        };
        if prompt == 0 || output == 0 {
            self.skipped.empty += 1;
            return Ok(None);
        }
        let time_ns = self.time_ns(fields.time.as_ref())?;
        let mut request = Request::new(Micros::ZERO, prompt, output);
        request.session = name(fields.session.as_ref())?;
        request.tenant = name(fields.tenant.as_ref())?;
        request.slo_class = name(fields.slo_class.as_ref())?;
        request.cache_salt = name(fields.cache_salt.as_ref())?;
        request.priority = priority(fields.priority.as_ref())?;
        Ok(Some(Row { time_ns, zero_output: false, request }))
    }

    /// Tokens of a text of so many characters, if a user said how long a token is.
    pub(super) fn tokens_of_text(&self, chars: u64) -> Result<u64, Fault> {
        let chars_per_token = self.chars_per_token.ok_or(Fault::TextOnly)?;
        Ok((chars as f64 / chars_per_token).ceil() as u64)
    }

    /// Prompt and answer; `None` if they are not known.
    fn lengths(&mut self, fields: &Fields) -> Result<Option<(u32, u32)>, Fault> {
        let prompt = count(fields.prompt.as_ref(), MAX_PROMPT_TOKENS)?;
        let output = count(fields.output.as_ref(), MAX_OUTPUT_TOKENS)?;
        let mut all = prompt.unwrap_or(0);
        for cached in &fields.cached {
            all += count(Some(cached), MAX_PROMPT_TOKENS)?.unwrap_or(0);
        }
        if let (Some(_), Some(output)) = (prompt, output) {
            self.has_lengths = true;
            let prompt = within(fields.prompt.as_ref().map_or("", |field| &field.name), all, MAX_PROMPT_TOKENS)?;
            return Ok(Some((prompt, output as u32)));
        }
        let (Some(prompt), Some(output)) = (fields.prompt_chars, fields.output_chars) else { return Ok(None) };
        if self.chars_per_token.is_none() && self.has_lengths {
            return Ok(None);
        }
        let prompt = within("tokens of the prompt, by characters,", self.tokens_of_text(prompt)?, MAX_PROMPT_TOKENS)?;
        let output = within("tokens of the answer, by characters,", self.tokens_of_text(output)?, MAX_OUTPUT_TOKENS)?;
        Ok(Some((prompt, output)))
    }

    fn time_ns(&mut self, time: Option<&(Field, Option<TimeUnit>)>) -> Result<i128, Fault> {
        let found = time.and_then(|(field, unit)| Some((&field.name, field.text.as_ref()?, *unit)));
        match (found, &mut self.drawn) {
            (Some((name, text, unit)), None) => self.clock.time_ns(name, text, unit),
            (None, Some(drawn)) => Ok(drawn.next_ns()),
            (Some((name, ..)), Some(_)) => {
                let name = excerpt(name);
                Err(Fault::Row(format!("{name} says when requests arrive: --arrival-rate is for files that do not")))
            }
            (None, None) => Err(Fault::NoTime(wanted(Role::Time))),
        }
    }
}

/// Times where there are none.
pub(super) struct Drawn {
    rate_rps: f64,
    stream: Pcg64Mcg,
    now_ns: i128,
}

impl Drawn {
    pub(super) fn new(rate_rps: f64, seed: u64) -> Result<Drawn, Fault> {
        // Written so that NaN is refused as well.
        if !(rate_rps > 0.0 && rate_rps <= MAX_RATE_RPS) {
            return Err(Fault::Row(format!(
                "{rate_rps} requests a second: must be above 0 and at most {MAX_RATE_RPS}"
            )));
        }
        Ok(Drawn { rate_rps, stream: seed::stream(seed, "trace.arrivals", 0), now_ns: 0 })
    }

    pub(super) fn next_ns(&mut self) -> i128 {
        let now_ns = self.now_ns;
        let gap: f64 = Exp1.sample(&mut self.stream);
        self.now_ns += (gap / self.rate_rps * 1e9) as i128;
        now_ns
    }
}

/// A whole number of tokens; `None` for nothing. pandas writes whole numbers as `472.0` where a column has gaps.
fn count(field: Option<&Field>, limit: u32) -> Result<Option<u64>, Fault> {
    let Some((name, text)) = field.and_then(|field| Some((&field.name, field.text.as_ref()?))) else { return Ok(None) };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_whole = |text: &str| is_digits(text) && fraction.bytes().all(|byte| byte == b'0');
    if !is_whole(whole) {
        let is_negative = whole.strip_prefix('-').is_some_and(is_digits);
        let what = if is_negative { "negative" } else { "not a whole number" };
        return Err(Fault::Row(format!("{} `{}` is {what}", excerpt(name), excerpt(text))));
    }
    let above = || Fault::Row(format!("{} `{}` is above the limit of {limit}", excerpt(name), excerpt(text)));
    // Only too many digits are left to go wrong.
    whole.parse().ok().filter(|count| *count <= u64::from(limit)).map(Some).ok_or_else(above)
}

/// A count that was made up of others within its limit.
pub(super) fn within(name: &str, count: u64, limit: u32) -> Result<u32, Fault> {
    let above = || Fault::Row(format!("{} `{count}` is above the limit of {limit}", excerpt(name)));
    u32::try_from(count).ok().filter(|count| *count <= limit).ok_or_else(above)
}

fn name(field: Option<&Field>) -> Result<Option<String>, Fault> {
    let Some((name, text)) = field.and_then(|field| Some((&field.name, field.text.as_ref()?))) else { return Ok(None) };
    if text.len() > MAX_NAME_BYTES {
        let (name, text) = (excerpt(name), excerpt(text));
        return Err(Fault::Row(format!("bytes of {name} `{text}` is above the limit of {MAX_NAME_BYTES}")));
    }
    Ok(Some(text.clone().into_owned()))
}

fn priority(field: Option<&Field>) -> Result<Option<i32>, Fault> {
    let Some((name, text)) = field.and_then(|field| Some((&field.name, field.text.as_ref()?))) else { return Ok(None) };
    let wrong = |_| Fault::Row(format!("{} `{}` is not a whole number", excerpt(name), excerpt(text)));
    text.strip_suffix(".0").unwrap_or(text).parse().map(Some).map_err(wrong)
}

/// Whether a field says that the request failed; `role` says how.
pub(super) fn says_failed(role: Role, text: &str) -> bool {
    let text = text.trim().to_ascii_lowercase();
    match role {
        Role::Failure => !["", "0", "false", "none", "null", "nan", "\\n", "{}", "[]"].contains(&text.as_str()),
        Role::Status => {
            ["failure", "failed", "error"].contains(&text.as_str())
                || text.parse::<f64>().is_ok_and(|status| status >= 400.0)
        }
        Role::Success => ["false", "0"].contains(&text.as_str()),
        _ => false,
    }
}
