//! Prometheus' text form, as far as counters and gauges need it.
//!
//! A line that is not understood is skipped and counted: what a server says is believed only line by line. Time stamps and
//! exemplars after a value are passed over.

/// Longest line looked at, bytes.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Most labels of one sample.
const MAX_LABELS: usize = 32;

/// Most samples kept.
const MAX_SAMPLES: usize = 100_000;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    pub(super) labels: Vec<(&'a str, String)>,
    /// From 0, finite.
    pub(super) value: f64,
}

impl Sample<'_> {
    /// The value of a label; empty where there is none, which in Prometheus is the same.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| *label == name).map_or("", |(_, value)| value)
    }
}

/// The samples of names that are `wanted`, and how many lines of these made no sense.
pub(super) fn parse(text: &str, wanted: impl Fn(&str) -> bool) -> (Vec<Sample<'_>>, u64) {
    let (mut samples, mut skipped) = (Vec::new(), 0);
    for line in text.lines().map(str::trim) {
        let name = line.split(['{', ' ', '\t']).next().unwrap_or_default();
        if line.starts_with('#') || !wanted(name) {
            continue;
        }
        let sample =
            (line.len() <= MAX_LINE_BYTES && samples.len() < MAX_SAMPLES).then(|| sample(name, line)).flatten();
        match sample {
            Some(sample) => samples.push(sample),
            None => skipped += 1,
        }
    }
    (samples, skipped)
}

fn sample<'a>(name: &'a str, line: &'a str) -> Option<Sample<'a>> {
    let mut rest = &line[name.len()..];
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once('=')?;
            let (value, after) = quoted(after.trim_start())?;
            if labels.len() == MAX_LABELS {
                return None;
            }
            labels.push((label.trim(), value));
            rest = after.trim_start();
            rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
        }
        rest = &rest[1..];
    }
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some(Sample { name, labels, value })
}

/// A value in quotes, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let body = text.strip_prefix('"')?;
    let (mut value, mut is_escaped) = (String::new(), false);
    for (index, character) in body.char_indices() {
        match (is_escaped, character) {
            (true, 'n') => value.push('\n'),
            (false, '\\') => {}
            (false, '"') => return Some((value, &body[index + 1..])),
            (_, other) => value.push(other),
        }
        is_escaped = !is_escaped && character == '\\';
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> (Vec<Sample<'_>>, u64) {
        parse(text, |name| name.starts_with("vllm:"))
    }

    #[test]
    fn lines_as_servers_write_them() {
        let text = "# HELP vllm:x Count.\n# TYPE vllm:x counter\nvllm:x{engine=\"0\",model_name=\"a\\\\b\\\"c,d}\\n\"} 1.5e3 1700000\n\
                    vllm:y 7\nother{a=\"b\"} 1\nvllm:z{} 3 # {trace_id=\"x\"} 0.5\nvllm:w{ le = \"+Inf\" , } 2\n";
        let (samples, skipped) = all(text);
        assert_eq!(skipped, 0);
        assert_eq!(samples.iter().map(|sample| sample.value).collect::<Vec<_>>(), [1_500.0, 7.0, 3.0, 2.0]);
        assert_eq!((samples[0].label("engine"), samples[0].label("model_name")), ("0", "a\\b\"c,d}\n"));
        assert_eq!((samples[3].label("le"), samples[3].label("none")), ("+Inf", ""));
    }

    #[test]
    fn what_makes_no_sense_is_skipped_and_counted() {
        for line in [
            "vllm:x NaN",
            "vllm:x -1",
            "vllm:x +Inf",
            "vllm:x",
            "vllm:x{a=\"b\"",
            "vllm:x{a=\"b} 1",
            "vllm:x{a=b} 1",
            "vllm:x{a} 1",
            "vllm:x{=} 1",
            "vllm:x one",
            "vllm:x{a=\"\\",
            "vllm:x{,,} 1",
        ] {
            assert_eq!(all(line), (Vec::new(), 1), "{line}");
        }
        let long = format!("vllm:x{{a=\"{}\"}} 1", "y".repeat(MAX_LINE_BYTES));
        let many = format!("vllm:x{{{}}} 1", "a=\"b\",".repeat(MAX_LABELS + 1));
        assert_eq!((all(&long).1, all(&many).1), (1, 1));
    }

    #[test]
    fn no_text_breaks_it() {
        // Every prefix and every byte changed of a good line: nothing panics.
        let line = "vllm:x{engine=\"0\",model_name=\"a\\\"ü\"} 1.5e3\n";
        for (index, _) in line.char_indices() {
            let _ = all(&line[..index]);
            for other in ['"', '{', '}', '\\', '=', ',', ' ', 'ü', '\0'] {
                let mut changed = line.to_owned();
                let end = index + line[index..].chars().next().map_or(1, char::len_utf8);
                changed.replace_range(index..end, &other.to_string());
                let _ = all(&changed);
            }
        }
    }
}
