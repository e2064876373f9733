//! Devices of known truth are timed, fitted and predicted.

mod synthetic;

use kvtide_envs::cost::{Fitted, Measured, Schedule, fit, measure, render};
use kvtide_envs::sched::EngineKind;
use synthetic::Synthetic;

fn measured(device: &mut Synthetic, budget: u32) -> Measured {
    let schedule = Schedule::new(&device.deployment.engine(EngineKind::V1), budget, 20);
    measure(&schedule, device, &mut |_| {}).unwrap()
}

fn fitted(device: &mut Synthetic) -> Fitted {
    let measured = measured(device, 1000);
    fit(&measured, &device.deployment).unwrap()
}

#[test]
fn what_was_held_out_is_predicted() {
    for mut device in synthetic::all(1) {
        let fitted = fitted(&mut device);
        println!("{}{:?}\n", render(&fitted), fitted.hardware.kernels.as_ref().unwrap());
    }
}
