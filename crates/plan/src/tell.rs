//! A plan for people.

use stoker_planner::{Plan, Tone, human};

use crate::failure::Failure;
use crate::{out, paint};

/// Title, figures, reasons, what would help.
pub fn plan(plan: &Plan, is_verbose: bool) -> Result<(), Failure> {
    let tone = match plan.tone {
        Tone::Ok => Some(paint::Tone::Good),
        Tone::Warn => Some(paint::Tone::Careful),
        Tone::Bad => Some(paint::Tone::Bad),
        Tone::Plain => None,
    };
    out::line(tone.map_or_else(|| plan.title.clone(), |tone| paint::text(&plan.title, tone)))?;
    let rows: Vec<Vec<String>> = plan
        .figures
        .iter()
        .map(|figure| vec![format!("  {}", figure.label), figure.text.clone(), String::new()])
        .collect();
    out::table(&rows)?;
    list("why", &plan.reasons)?;
    let changes: Vec<String> =
        plan.changes.iter().map(|change| format!("{}: {}", change.what, change.text)).collect();
    list("what would help most", &changes)?;
    if is_verbose {
        constants(plan)?;
        list("assumed", &plan.assumptions)?;
    } else if !plan.constants.is_empty() {
        let measured = plan.constants.iter().filter(|one| one.measured.is_some()).count();
        out::say(format!(
            "{measured} of {} constants were measured; --verbose lists them and what is assumed",
            plan.constants.len()
        ));
    }
    Ok(())
}

fn list(heading: &str, lines: &[String]) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    out::line(format!("{heading}:"))?;
    lines.iter().try_for_each(|line| out::line(format!("  - {line}")))
}

/// Constants side by side: assumed, measured.
pub fn constants(plan: &Plan) -> Result<(), Failure> {
    if plan.constants.is_empty() {
        return Ok(());
    }
    let mut rows = vec![["constant", "assumed", "measured", "from"].map(String::from).to_vec()];
    for one in &plan.constants {
        let measured = one.measured.map_or_else(|| "-".into(), |value| human(value, one.unit));
        rows.push(vec![one.name.to_owned(), human(one.assumed, one.unit), measured, one.from.clone()]);
    }
    out::table(&rows)
}
