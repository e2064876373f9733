//! Statistics of clients: what is drawn from them, what is not, and what is refused.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use kvtide_envs::env::{EpisodeSource, ResetOptions};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::servegen::ServeGenStats;
use kvtide_envs::trace::{Request, ServeGen, SessionArrivals, Trace, TraceReader};
use kvtide_envs::workload::{LengthScale, Replay, Scaling, Window, Workload, WorkloadSource};
use tempfile::TempDir;

/// `(name, content)` of files.
type Files = Vec<(String, String)>;

fn rates(rows: &[(u64, f64, f64)]) -> String {
    let row = |(start_s, rate, cv): &(u64, f64, f64)| format!("{start_s},{rate},{cv},Gamma,1.0,1.0\n");
    rows.iter().map(row).collect()
}

fn lengths(periods: &[(u64, &str, &str)]) -> String {
    let period = |(start_s, prompt, output): &(u64, &str, &str)| {
        format!("\"{start_s}\": {{\"input_tokens\": \"{prompt}\", \"output_tokens\": \"{output}\"}}")
    };
    format!("{{{}}}", periods.iter().map(period).collect::<Vec<_>>().join(","))
}

/// A client of 4 requests a second that falls silent after ten minutes and comes back with longer answers, and one of 1 a second.
fn two_clients() -> Files {
    let day = rates(&[(0, 4.0, 1.0), (600, 0.0, 0.0), (21_600, 2.0, 1.0)]);
    let short_then_long = lengths(&[(0, "{100: 1.0}", "{10: 0.5, 20: 0.5}"), (21_600, "{100: 1.0}", "{500: 1.0}")]);
    let steady = rates(&[(0, 1.0, 0.0), (600, 1.0, 0.0)]);
    vec![
        ("chunk-0-trace.csv".to_owned(), day),
        ("chunk-0-dataset.json".to_owned(), short_then_long),
        ("chunk-1-trace.csv".to_owned(), steady),
        ("chunk-1-dataset.json".to_owned(), lengths(&[(0, "{7: 1.0}", "{3: 1.0}")])),
    ]
}

fn folder(files: &Files) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn tar(files: &Files, path: &Path) {
    let mut builder = tar::Builder::new(fs::File::create(path).unwrap());
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_entry_type(if name.ends_with('/') { tar::EntryType::Directory } else { tar::EntryType::Regular });
        // Not `append_data`, which refuses the names that are to be tried.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, text.as_bytes()).unwrap();
    }
    builder.finish().unwrap();
}

fn open(path: &Path) -> Result<ServeGen, String> {
    match Trace::open(path, SessionArrivals::default()) {
        Ok(Trace::Clients(clients)) => Ok(clients),
        Ok(Trace::Requests(_) | Trace::Profile(_)) => Err("requests".to_owned()),
        Err(error) => Err(error.to_string().replace(&path.display().to_string(), "t")),
    }
}

fn read(files: &Files) -> Result<ServeGen, String> {
    open(folder(files).path())
}

fn window(start_s: u64, end_s: u64) -> Window {
    Window { start: Micros(start_s * 1_000_000), end: Micros(end_s * 1_000_000) }
}

fn of_client<'a>(workload: &'a Workload, name: &'a str) -> impl Iterator<Item = &'a Request> {
    workload.requests().iter().filter(move |request| request.tenant.as_deref() == Some(name))
}

#[test]
fn a_folder_and_an_archive_of_it_are_the_same_traffic() {
    let files = two_clients();
    let clients = read(&files).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("day.tar");
    // With folders and other files, in another order; names out of the folder are names like others.
    let mut packed: Files = vec![("language/".into(), String::new()), ("language/m/".into(), String::new())];
    packed.push(("README".into(), "not a client".into()));
    packed.extend(files.iter().rev().map(|(name, text)| (format!("../../language/m/{name}"), text.clone())));
    tar(&packed, &path);
    let archived = open(&path).unwrap();
    assert_eq!(archived.clients(), clients.clients());
    assert_eq!((archived.name().as_str(), archived.fingerprint()), ("day", clients.fingerprint()));
    let compressed = folder.path().join("day.tar.zst");
    fs::write(&compressed, zstd::encode_all(fs::read(&path).unwrap().as_slice(), 1).unwrap()).unwrap();
    assert_eq!(open(&compressed).unwrap().clients(), clients.clients());
    let said = TraceReader::open(&compressed).err().unwrap().to_string();
    assert!(said.contains("holds statistics of clients, not requests"), "{said}");
}

#[test]
fn rates_lengths_and_tenants_are_those_of_client_and_time() {
    let clients = read(&two_clients()).unwrap();
    assert_eq!(clients.span(), Micros(22_200 * 1_000_000));
    let replay = Replay { window: Some(window(0, 600)), seed: 1, ..Replay::default() };
    let workload = clients.draw(&replay).unwrap();
    let (many, few) = (of_client(&workload, "chunk-0").count(), of_client(&workload, "chunk-1").count());
    // 2,400 expected, with a deviation of 49; and a metronome.
    assert!((2_200..2_600).contains(&many) && few == 600, "{many} and {few}");
    assert!(of_client(&workload, "chunk-0").all(|request| request.prompt_tokens == 100));
    let short = of_client(&workload, "chunk-0").filter(|request| request.output_tokens == 10).count();
    assert!((short as f64 / many as f64 - 0.5).abs() < 0.05 && workload.span() == Micros(600 * 1_000_000));
    // Later the second has gone, and answers are longer.
    let later = clients.draw(&Replay { window: Some(window(21_600, 22_200)), ..replay }).unwrap();
    assert!(later.requests().iter().all(|request| request.output_tokens == 500));
    assert_eq!(
        clients.draw(&Replay { window: Some(window(2_000, 2_600)), ..replay }).unwrap_err().to_string(),
        "window 2000s..2600s: no request arrives in it"
    );
    assert_eq!(clients.draw(&replay), Ok(workload));
    assert_ne!(clients.draw(&Replay { seed: 2, ..replay }), clients.draw(&replay));
}

#[test]
fn a_window_is_a_part_of_any_longer_one() {
    let clients = read(&two_clients()).unwrap();
    let draw = |window| clients.draw(&Replay { window: Some(window), seed: 3, ..Replay::default() }).unwrap();
    let whole = draw(window(0, 1_200));
    let part = Window { start: Micros(250_000_000), end: Micros(777_000_001) };
    assert_eq!(draw(part).requests(), whole.window(part).unwrap().requests());
}

#[test]
fn the_mean_number_of_requests_is_rate_times_time_however_bursty() {
    for cv in [0.0, 0.5, 1.0, 4.0, 1_000.0] {
        let clients = read(&vec![
            ("chunk-3-trace.csv".into(), rates(&[(0, 1.0, cv)])),
            ("chunk-3-dataset.json".into(), lengths(&[(0, "{1: 1.0}", "{1: 1.0}")])),
        ])
        .unwrap();
        let count = |seed, start, end| {
            let replay = Replay { window: Some(window(start, end)), seed, ..Replay::default() };
            clients.draw(&replay).map_or(0, |workload| workload.requests().len()) as f64
        };
        // The first minute as well as any other: a process that has been running for ever.
        for (start, end) in [(0, 60), (300, 360)] {
            let mean = (0..4_000).map(|seed| count(seed, start, end)).sum::<f64>() / 4_000.0;
            // Counts vary by about rate, time and squared CV; over 20 a CV is 20.
            let deviation = (60.0 * f64::min(cv, 20.0).max(0.1).powi(2) / 4_000.0).sqrt();
            assert!((mean - 60.0).abs() < 5.0 * deviation, "{mean} of 60 at a CV of {cv}, from {start}");
        }
    }
}

#[test]
fn a_load_scales_rates_and_keeps_requests() {
    let clients = read(&two_clients()).unwrap();
    let at = |load| clients.draw(&Replay { load, window: Some(window(0, 600)), seed: 5, ..Replay::default() }).unwrap();
    let (half, all) = (at(0.5), at(1.0));
    let lengths = |workload: &Workload| -> Vec<u32> {
        of_client(workload, "chunk-0").map(|request| request.output_tokens).collect()
    };
    assert!((lengths(&half).len() as f64 / lengths(&all).len() as f64 - 0.5).abs() < 0.06);
    assert_eq!(lengths(&half), lengths(&all)[..lengths(&half).len()], "the same requests, later");
    let said = |replay| clients.draw(&replay).unwrap_err().to_string();
    assert_eq!(said(Replay { load: 0.0, ..Replay::default() }), "load 0: must be above 0 and at most 1000");
    let drawn = "arrivals are drawn, not recorded";
    assert!(said(Replay { scaling: Scaling::Stretch, ..Replay::default() }).contains(drawn));
    assert!(said(Replay { jitter: Some(Micros(9)), ..Replay::default() }).contains(drawn));
    let beyond = said(Replay { window: Some(window(0, 30_000)), ..Replay::default() });
    assert_eq!(beyond, "window 0s..30000s: reaches beyond the trace, which ends at 22200.000000s");
    assert_eq!(said(Replay { load: 1_000.0, cv: Some(99.0), ..Replay::default() }), "cv 99: must be from 0 to 20");
    let busy = read(&vec![
        ("chunk-0-trace.csv".into(), rates(&[(0, 50_000.0, 1.0)])),
        ("chunk-0-dataset.json".into(), self::lengths(&[(0, "{1: 1.0}", "{1: 1.0}")])),
    ]);
    let said = busy.unwrap().draw(&Replay::default()).unwrap_err().to_string();
    assert_eq!(
        said,
        "window 0s..600s: about 30000000 requests, more than 10000000: ask for a shorter window or a lower load"
    );
}

#[test]
fn the_rarest_and_the_most_regular_clients_are_drawn_from() {
    let clients = read(&vec![
        ("chunk-0-trace.csv".into(), rates(&[(0, 1e-300, 1e-160), (600, 5.0, 1e-160)])),
        ("chunk-0-dataset.json".into(), lengths(&[(0, "{1: 1.0}", "{1: 1.0}")])),
    ])
    .unwrap();
    let workload = clients.draw(&Replay::default()).unwrap();
    assert_eq!(workload.requests().len(), 3_000);
    let rare = Replay { load: 1e-300, ..Replay::default() };
    assert_eq!(clients.draw(&rare).unwrap_err().to_string(), "window 0s..1200s: no request arrives in it");
    // A second amid ten minutes, at a thousand times the rate.
    let busy = Replay { load: 1_000.0, window: Some(window(700, 701)), ..Replay::default() };
    let second = clients.draw(&busy).unwrap().requests().len();
    assert!((4_990..=5_010).contains(&second), "{second}");
}

#[test]
fn it_can_be_longer_and_burstier_like_any_traffic() {
    let clients = read(&two_clients()).unwrap();
    let plain = Replay { window: Some(window(0, 600)), seed: 5, ..Replay::default() };
    let changed = Replay { cv: Some(4.0), lengths: LengthScale::both(2.0), ..plain };
    let (plain, changed) = (clients.draw(&plain).unwrap(), clients.draw(&changed).unwrap());
    assert_eq!(plain.requests().len(), changed.requests().len());
    for (before, after) in plain.requests().iter().zip(changed.requests()) {
        assert_eq!((after.prompt_tokens, after.output_tokens), (before.prompt_tokens * 2, before.output_tokens * 2));
    }
}

#[test]
fn images_are_tokens_of_the_prompt() {
    let images = "{\"0\": {\"text_tokens\": \"{10: 1.0}\", \"image_tokens\": \"{100: 1.0}\", \"image_count\": \"{2: 1.0}\", \
                  \"audio_tokens\": \"{0: 1.0}\", \"audio_count\": \"{0: 1.0}\", \"output_tokens\": \"{0: 1.0}\"}}";
    let files =
        vec![("chunk-0-trace.csv".into(), rates(&[(0, 1.0, 1.0)])), ("chunk-0-dataset.json".into(), images.into())];
    let workload = read(&files).unwrap().draw(&Replay::default()).unwrap();
    // An answer of 0 tokens is one of 1, as in every foreign format.
    assert!(workload.requests().iter().all(|request| (request.prompt_tokens, request.output_tokens) == (210, 1)));
}

#[test]
fn what_has_no_lengths_is_left_out_and_counted() {
    let mut files = two_clients();
    files[1].1 = lengths(&[(0, "{100: 1.0}", "{10: 1.0}"), (21_600, "{}", "{}")]);
    files.push(("chunk-2-trace.csv".into(), rates(&[(0, 2.0, 1.0)])));
    files.push(("chunk-9-dataset.json".into(), lengths(&[])));
    let clients = read(&files).unwrap();
    assert_eq!(clients.clients().len(), 2);
    let left_out = clients.left_out();
    assert_eq!((left_out.clients, left_out.requests), (2, 1_200.0 + 1_200.0));
    let shown = ServeGenStats::of(&clients).to_string();
    let warning = "warning: lengths or rates are missing, left out: 2 clients, 2400 requests (40.0 %)";
    assert!(shown.contains(warning), "{shown}");
    assert!(shown.contains("largest        chunk-0 66.7 %, chunk-1 33.3 %"), "{shown}");
}

#[test]
fn what_is_wrong_is_said_with_file_line_and_value() {
    let said = |index: usize, text: &str| {
        let mut files = two_clients();
        files[index].1 = text.to_owned();
        read(&files).unwrap_err()
    };
    let rows = |text: &str| said(0, text);
    assert_eq!(rows("0,1.0,1.0,Gamma,1.0\n"), "t/chunk-0-trace.csv:1: 5 columns instead of 6: `0,1.0,1.0,Gamma,1.0`");
    let second = |row: &str| rows(&format!("0,1,1,,0,0\n\n{row}\n"));
    assert_eq!(second("600,x,1,,0,0"), "t/chunk-0-trace.csv:3: rate `x` is not a number");
    assert_eq!(second("600,nan,1,,0,0"), "t/chunk-0-trace.csv:3: rate `nan` is not a number from 0");
    assert_eq!(second("600,1,-1,,0,0"), "t/chunk-0-trace.csv:3: cv `-1` is not a number from 0");
    assert_eq!(second("600,inf,1,,0,0"), "t/chunk-0-trace.csv:3: rate `inf` is not a number from 0");
    assert_eq!(second("600,1e9,1,,0,0"), "t/chunk-0-trace.csv:3: rate `1e9` is above the limit of 100000");
    assert_eq!(
        second("300,1,1,,0,0"),
        "t/chunk-0-trace.csv:3: starts at 300 s, less than 600 s after the row above (0 s)"
    );
    assert!(second("1e300,1,1,,0,0").contains("is above the limit of"));

    let dataset = |prompt: &str| said(1, &lengths(&[(0, prompt, "{1: 1.0}")]));
    let place = "t/chunk-0-dataset.json: 0: input_tokens:";
    assert_eq!(dataset("{1: 0.5, 2: 0.6}"), format!("{place} shares add up to 1.1, not to 1"));
    assert_eq!(dataset("{1: nan}"), format!("{place} share `nan` is not a number from 0 to 1"));
    assert_eq!(dataset("{99999999: 1.0}"), format!("{place} length `99999999` is above the limit of 16777216"));
    assert_eq!(said(1, "{\"x\": {}}"), "t/chunk-0-dataset.json: period `x` is not its start in whole seconds");
    assert_eq!(said(1, "{\"0\": {"), "t/chunk-0-dataset.json: cut off: `{\"0\": {`");
    let number = "{\"0\": {\"input_tokens\": 5, \"output_tokens\": \"{1: 1.0}\"}}";
    assert_eq!(said(1, number), format!("{place} distribution `5` is not text"));
    assert_eq!(
        read(&Vec::new()).unwrap_err(),
        "t: a folder without ServeGen statistics (chunk-N-trace.csv and chunk-N-dataset.json): give one file, or put several \
         together on standard input (-)"
    );
    let lengths_alone = vec![("chunk-9-dataset.json".into(), lengths(&[]))];
    assert_eq!(
        read(&lengths_alone).unwrap_err(),
        "t: no client of whom rates (chunk-N-trace.csv) and lengths (chunk-N-dataset.json) are known"
    );
}

#[test]
fn archives_that_are_wrong_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let said = |files: &Files| {
        tar(files, &path);
        open(&path).unwrap_err()
    };
    let mut twice = two_clients();
    twice.push(("other/chunk-0-trace.csv".into(), rates(&[(0, 1.0, 1.0)])));
    assert_eq!(
        said(&twice),
        "t: other/chunk-0-trace.csv: a second file of that kind for client 0: give one folder of clients at a time"
    );
    let mut bad = two_clients();
    bad[2].1 = "0,1,1,,0,0\n600,y,1,,0,0\n".to_owned();
    assert_eq!(said(&bad), "t: chunk-1-trace.csv: line 2: rate `y` is not a number");
    tar(&two_clients(), &path);
    let whole = fs::read(&path).unwrap();
    // Cut within the first file and within a later one.
    for bytes in [700, 1_700] {
        fs::write(&path, &whole[..bytes]).unwrap();
        let said = open(&path).unwrap_err();
        assert!(said.contains("the tar archive ends early"), "{bytes}: {said}");
    }
}

#[test]
fn episodes_are_cut_by_time() {
    let clients = std::sync::Arc::new(read(&two_clients()).unwrap());
    let range = window(0, 1_200);
    let source = WorkloadSource::Clients { clients, replay: Replay::default() };
    let mut episodes = EpisodeSource { source, range, length: Micros(60_000_000), load: (0.5, 2.0) };
    episodes.validate(false).unwrap();
    let options = ResetOptions { start: Some(Micros(540_000_000)), load: Some(1.0), ..ResetOptions::default() };
    let drawn = episodes.draw(1, &options, false).unwrap();
    assert!(drawn.requests.iter().all(|request| request.arrival < Micros(60_000_000)) && drawn.requests.len() > 200);
    assert_ne!(drawn.requests, episodes.draw(2, &options, false).unwrap().requests);
    // 2,400 requests of 15 tokens and 1,200 of 3.
    assert!((episodes.mean_output().unwrap() - 11.0).abs() < 1e-9);
    episodes.range.end = Micros(30_000_000_000);
    assert!(episodes.validate(false).is_err());
}

#[test]
fn the_published_days_can_be_drawn_from() {
    for (file, clients, rate) in [
        ("servegen_m-large_day0-9.tar.zst", 135, 129.2),
        ("servegen_m-mid_day0-9.tar.zst", 71, 1_116.0),
        ("servegen_mm-image_full.tar.zst", 35, 9.47),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces").join(file);
        if !path.exists() {
            let _ = writeln!(io::stderr(), "skipped: no ../shared/traces/{file}");
            return;
        }
        let statistics = open(&path).unwrap();
        assert_eq!(statistics.clients().len(), clients, "{file}");
        let span = Window { start: Micros::ZERO, end: statistics.span() };
        let mean_rps = statistics.expected_requests(span.start..span.end) / span.end.as_secs_f64();
        assert!((mean_rps / rate - 1.0).abs() < 0.01, "{file}: {mean_rps}");
        // An hour of an evening at a tenth of the rate.
        let hour = Window { start: Micros(64_800_000_000), end: Micros(68_400_000_000) };
        let workload = statistics.draw(&Replay { load: 0.1, window: Some(hour), ..Replay::default() }).unwrap();
        let expected = statistics.expected_requests(hour.start..hour.end) * 0.1;
        let share = workload.requests().len() as f64 / expected;
        assert!((0.5..1.5).contains(&share), "{file}: {share} of {expected} requests");
        let mean = workload.requests().iter().map(|request| f64::from(request.output_tokens)).sum::<f64>()
            / workload.requests().len() as f64;
        assert!((mean / statistics.mean_output(hour.start..hour.end) - 1.0).abs() < 0.3, "{file}: {mean}");
    }
}
