//! The shipped configuration file, which names every setting with its default.

/// The file.
pub const SHIPPED: &str = include_str!("../../../../deploy/stoker.toml");

/// Sections that are examples: they have no defaults.
pub const EXAMPLES: [&str; 6] = ["drive", "slo.target", "slo.hook", "oidc", "oidc.role", "oidc.console"];

/// A commented setting: the line with its comment taken away.
fn setting(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ")?;
    let (name, _) = line.split_once(" = ")?;
    name.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        .then_some(line)
}

/// Every section of the shipped file with its settings, as `name = value`.
pub fn sections() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in SHIPPED.lines() {
        let bare = line.trim_start_matches("# ");
        if bare.starts_with('[') && bare.ends_with(']') {
            sections.push((bare.trim_matches(['[', ']']), Vec::new()));
        } else if let (Some(setting), Some((_, settings))) = (setting(line), sections.last_mut()) {
            settings.push(setting);
        }
    }
    sections
}
