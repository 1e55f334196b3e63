//! Templates in a spec: `{user}`, `{tenant}`, `{project}`, `{allocation_id}`.

use stoker_store::JobSpec;

/// What templates stand for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Values {
    /// The user; empty if the job is nobody's in particular.
    pub user: String,
    /// The tenant.
    pub tenant: String,
    /// The project; none if nobody said one.
    pub project: Option<String>,
    /// The id of the job.
    pub allocation_id: String,
}

/// The project of a job of which nobody said one.
const PROJECT_DEFAULT: &str = "default";

impl Values {
    fn of(&self, name: &str) -> Result<&str, String> {
        let value = match name {
            "user" => self.user.as_str(),
            "tenant" => self.tenant.as_str(),
            "project" => self.project.as_deref().unwrap_or(PROJECT_DEFAULT),
            "allocation_id" => self.allocation_id.as_str(),
            _ => {
                return Err(format!(
                    "`{{{name}}}` is no template; there are {{user}}, {{tenant}}, {{project}} and {{allocation_id}}"
                ));
            }
        };
        // A value comes from elsewhere, and must not lead to another place.
        let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
        let is_sound = !value.is_empty() && value.len() <= 128 && value.chars().all(is_plain);
        if !is_sound || value.split('.').all(str::is_empty) {
            return Err(match value {
                "" => format!("`{{{name}}}` stands for nothing here: the job has no {name}"),
                _ => {
                    format!("`{{{name}}}` cannot stand for `{}`", value.chars().take(64).collect::<String>())
                }
            });
        }
        Ok(value)
    }

    fn text(&self, text: &str) -> Result<String, String> {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(open) = rest.find('{') {
            let close = rest[open..].find('}').ok_or_else(|| format!("`{{` is not closed in `{text}`"))?;
            out.push_str(&rest[..open]);
            out.push_str(self.of(&rest[open + 1..open + close])?);
            rest = &rest[open + close + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// The spec without templates. What nobody asked for and cannot be filled is left out, and said in the notes.
pub fn expand(spec: &JobSpec, values: &Values) -> Result<(JobSpec, Vec<String>), String> {
    let mut notes = Vec::new();
    let mut mounts = Vec::new();
    for mount in &spec.mounts {
        let filled = values.text(&mount.source).and_then(|source| Ok((source, values.text(&mount.target)?)));
        match filled {
            Ok((source, target)) => {
                mounts.push(stoker_store::JobMount { source, target, ..mount.clone() });
            }
            Err(why) if mount.is_default => notes.push(format!("{} is not mounted: {why}", mount.target)),
            Err(why) => return Err(why),
        }
    }
    let output = match spec.output.as_deref().map(|output| values.text(output)) {
        Some(Err(why)) if spec.output_is_default => {
            notes.push(format!("there is no output directory: {why}"));
            None
        }
        output => output.transpose()?,
    };
    Ok((JobSpec { mounts, output, ..spec.clone() }, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_and_lead_nowhere_else() {
        let values = |user: &str| Values {
            user: user.into(),
            tenant: "acme".into(),
            project: None,
            allocation_id: "7".into(),
        };
        let text = |user: &str, text: &str| values(user).text(text);
        assert_eq!(
            text("al", "s3://{tenant}/{project}/{allocation_id}/{user}").unwrap(),
            "s3://acme/default/7/al"
        );
        assert_eq!(text("al", "plain").unwrap(), "plain");
        for (user, given, part) in [
            ("..", "{user}", "cannot stand"),
            ("a/b", "{user}", "cannot stand"),
            ("", "{user}", "no user"),
            ("al", "{users}", "no template"),
            ("al", "{user", "not closed"),
        ] {
            let why = text(user, given).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
