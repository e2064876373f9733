//! Profiles with measured kernels as files.

use std::fmt::Write;
use std::path::Path;

use kvtide_envs::deploy::{FittedTo, Hardware, HardwareProfile, Setting};

use super::{fitted, tiles};

fn profile() -> HardwareProfile {
    let fitted = fitted(&mut tiles(1));
    let provenance = Some(FittedTo::Timings(fitted.provenance("2026-11-22")));
    HardwareProfile { hardware: Hardware { name: "h200-timed".to_owned(), ..fitted.hardware }, provenance }
}

#[test]
fn a_fit_is_written_and_read_again() {
    let profile = profile();
    let text = profile.to_toml();
    assert!(text.contains("\n[hardware.kernels]\ntokens = [1, "), "{text}");
    assert!(text.contains("\n[timings]\ndevice = \"tiles\"\n"), "{text}");
    assert_eq!(HardwareProfile::parse(&text), Ok(profile.clone()));
    let json = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<HardwareProfile>(&json).unwrap(), profile);
    // What there was before reads as it did, and is written as it was.
    let committed = include_str!("../../src/deploy/profiles/rtx-4090-measured.toml");
    let served = HardwareProfile::parse(committed).unwrap();
    assert!(matches!(served.provenance, Some(FittedTo::Run(_))) && served.hardware.kernels.is_none());
    let values = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let number = |line: &str| {
        let (key, value) = line.split_once(" = ").unwrap_or((line, ""));
        (key.to_owned(), value.parse::<f64>().map_or(value.to_owned(), |value| value.to_string()))
    };
    let [before, after] =
        [committed, &served.to_toml()].map(|text| values(text).iter().map(|line| number(line)).collect::<Vec<_>>());
    assert_eq!(before, after);
}

#[test]
fn hostile_profiles_are_refused_with_line_and_value() {
    let good = profile().to_toml();
    let line_of = |key: &str| good.lines().position(|line| line.starts_with(key)).unwrap() + 1;
    let with = |key: &str, value: &str| {
        let changed =
            good.lines().map(|line| if line.starts_with(key) { format!("{key} = {value}") } else { line.to_owned() });
        let (line, reason) = HardwareProfile::parse(&changed.collect::<Vec<_>>().join("\n")).unwrap_err();
        assert_eq!(line, Some(line_of(key)), "{key} = {value}: {reason}");
        reason
    };
    assert_eq!(with("tokens", "[]"), "tokens=\"0 knots\": expected 2 to 64 knots");
    assert!(with("ps_per_weight", "[0.5, 0.6]").starts_with("ps_per_weight=\"2 knots\": expected as many values"));
    assert!(with("tokens", "[-1, 3]").starts_with("invalid value: integer `-1`"));
    assert!(with("tokens", "[1, nan]").starts_with("invalid type: floating point `NaN`"));
    assert!(with("decode_bandwidth", "nan").starts_with("decode_bandwidth=\"NaN\": expected a share"));
    assert!(with("decode_sequence", "-1e-9").starts_with("decode_sequence=\"-0.000000001\": expected seconds"));
    assert!(with("chunk_tile", "0").starts_with("chunk_tile=\"0\": expected tokens"));
    assert!(with("launch", "inf").starts_with("launch=\"inf\": expected seconds"));
    assert!(with("swap_overlap", "1.01").starts_with("swap_overlap=\"1.01\": expected a share from 0 to 1"));

    let curve = |tokens: &str, times: &str| {
        let line = |line: &str| match line.split(' ').next() {
            Some("tokens") => format!("tokens = {tokens}"),
            Some("ps_per_weight") => format!("ps_per_weight = {times}"),
            _ => line.to_owned(),
        };
        let text: String = good.lines().map(|text| line(text) + "\n").collect();
        let (line, reason) = HardwareProfile::parse(&text).unwrap_err();
        (line.unwrap() - line_of("tokens"), reason, text)
    };
    let told = |tokens, times| {
        let (line, reason, _) = curve(tokens, times);
        (line, reason)
    };
    let unsorted = told("[64, 1]", "[0.5, 0.6]");
    assert_eq!(unsorted, (0, "tokens=\"64, 1\": expected ascending numbers".to_owned()));
    let (line, reason) = told("[1, 64]", "[0.5, nan]");
    assert_eq!((line, reason.as_str()), (1, "ps_per_weight=\"NaN\": expected picoseconds, from 1e-6 to 1e6"));
    assert!(told("[1, 64]", "[0.6, 0.5]").1.ends_with("expected values that never fall"));

    let mut many = "[1".to_owned();
    (2..=1_000_000).for_each(|knot| write!(many, ", {knot}").unwrap());
    many.push(']');
    let (line, reason, text) = curve(&many, "[0.5, 0.6]");
    assert_eq!((line, reason.as_str()), (0, "tokens=\"1000000 knots\": expected 2 to 64 knots"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.toml");
    std::fs::write(&path, text).unwrap();
    assert!(HardwareProfile::read(&path).unwrap_err().to_string().ends_with("many.toml: longer than 1048576 bytes"));
    assert!(HardwareProfile::read(Path::new("nowhere.toml")).is_err());

    let run = include_str!("../../src/deploy/profiles/rtx-4090-measured.toml");
    let both = format!("{good}\n{}", &run[run.find("[provenance]").unwrap()..]);
    assert!(HardwareProfile::parse(&both).unwrap_err().1.starts_with("both [provenance] and [timings]"));
    let (line, reason) = HardwareProfile::parse(&good.replace("driver = ", "drivers = ")).unwrap_err();
    assert_eq!(line, Some(line_of("driver")));
    assert!(reason.starts_with("unknown field `drivers`"), "{reason}");
    let (line, reason) = HardwareProfile::parse(&good.replace("chunk_tile = ", "chunk_tiles = ")).unwrap_err();
    assert_eq!(line, Some(line_of("chunk_tile")));
    assert!(reason.starts_with("unknown field `chunk_tiles`"), "{reason}");
}

#[test]
fn an_override_of_a_roof_takes_the_kernels_away() {
    let hardware = profile().hardware;
    let with = |setting: &str| hardware.clone().with(&[setting.parse::<Setting>().unwrap()]);
    assert_eq!(with("bandwidth_efficiency=0.5").kernels, None);
    assert_eq!(with("step_overhead=0.001").kernels, hardware.kernels);
}
