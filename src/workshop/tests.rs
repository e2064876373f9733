//! What a worker comes to is what this process comes to.

use std::fs;

use super::*;
use crate::policy::PolicySpec;
use crate::world::{Draw, WorldSpec};

fn world() -> WorldSpec {
    let text = "workload = \"chat:rate=2,n=60\"\nset = [\"num_gpu_blocks=600\"]\n";
    toml::from_str(text).unwrap()
}

#[test]
fn a_run_is_the_run_of_this_process() {
    let (spec, folder) = (world(), tempfile::tempdir().unwrap());
    let world = spec.world().unwrap();
    let setting = MatrixWork::setting(&spec, &world, &[PolicySpec::Default], true).unwrap();
    let workshop = Workshop::open(&setting.text, folder.path()).unwrap();
    for (policy, clock) in [("default", None), ("fixed:0.05,victim=most-blocks", None), ("default", Some(3))] {
        let world = world.by_clock(clock.unwrap_or(0));
        let draw = Draw { window: None, load: 1.5, seed: 7 };
        let errand = world.errand(policy.to_owned(), &draw);
        assert_eq!(errand.clock, clock);
        let answer = workshop.work(&serde_json::to_string(&errand).unwrap()).unwrap();
        let spec: PolicySpec = policy.parse().unwrap();
        let mut controller = crate::policy::Subject::load(&spec).unwrap().controller().unwrap();
        let here = world.serve(1.5, &world.draw(&draw).unwrap(), controller.as_mut()).unwrap();
        assert_eq!(answer, serde_json::to_string(&here).unwrap(), "{policy}");
        assert_eq!(serde_json::from_str::<kvtide_envs::metrics::Summary>(&answer).unwrap(), here);
    }
    for (task, said) in [
        ("{}", "a task: missing field `policy`"),
        (r#"{"policy":"best-fixed","window":null,"load":1,"seed":1,"clock":null}"#, "policy best-fixed is many runs"),
        (r#"{"policy":"table:x.kvt","window":null,"load":1,"seed":1,"clock":null}"#, "is not of this setting"),
        (r#"{"policy":"default","window":null,"load":0,"seed":1,"clock":null}"#, "rate must be from"),
    ] {
        let error = workshop.work(task).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn files_travel_by_what_they_hold() {
    let here = tempfile::tempdir().unwrap();
    let trace = here.path().join("trace.csv");
    let rows = (0..40).map(|row| format!("2024-01-01 00:00:{:02}.0,{},20", row, 100 + row)).collect::<Vec<_>>();
    fs::write(&trace, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{}\n", rows.join("\n"))).unwrap();
    let spec = WorldSpec { trace: Some(trace.clone()), workload: None, ..world() };
    let setting = MatrixWork::setting(&spec, &spec.world().unwrap(), &[], true).unwrap();

    let there = tempfile::tempdir().unwrap();
    let missing = Workshop::open(&setting.text, there.path()).err().unwrap().to_string();
    assert!(missing.contains("trace.csv: No such file"), "{missing}");
    let [file] = &files(&setting.text).unwrap()[..] else { panic!("one file") };
    let path = there.path().join(&file.name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "another").unwrap();
    let other = Workshop::open(&setting.text, there.path()).err().unwrap().to_string();
    assert!(other.contains("another file"), "{other}");
    fs::copy(&trace, &path).unwrap();
    let workshop = Workshop::open(&setting.text, there.path()).unwrap();
    let task = r#"{"policy":"default","window":null,"load":1,"seed":1,"clock":null}"#;
    assert!(workshop.work(task).unwrap().contains("\"requests\":40"));
}

#[test]
fn another_build_is_refused_by_name() {
    let (spec, folder) = (world(), tempfile::tempdir().unwrap());
    let setting = MatrixWork::setting(&spec, &spec.world().unwrap(), &[], true).unwrap();
    let other = setting.text.replace(BUILD, "0123abcd");
    let error = Workshop::open(&other, folder.path()).err().unwrap().to_string();
    assert!(error.contains(BUILD) && error.contains("0123abcd") && error.contains("one build"), "{error}");
}
