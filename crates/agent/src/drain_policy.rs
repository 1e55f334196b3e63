//! Drain policies as people write them.

use stoker_store::DrainPolicy;

/// When files leave for the lake: `every N` and `every:N` are the same.
pub fn parse_drain(text: &str) -> Result<DrainPolicy, String> {
    match text {
        "always" => Ok(DrainPolicy::Always),
        "never" => Ok(DrainPolicy::Never),
        "on-demand" => Ok(DrainPolicy::OnDemand),
        _ => match text
            .strip_prefix("every")
            .and_then(|rest| rest.strip_prefix([':', ' ']))
            .map(|count| count.trim().parse())
        {
            Some(Ok(count @ 1..)) => Ok(DrainPolicy::Every(count)),
            _ => Err("expected always, never, on-demand or every:N (`every N` is the same)".into()),
        },
    }
}
