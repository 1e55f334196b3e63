//! Carrying out a row of the table: the new state, the commands, the work order, the record.

use super::Reflex;
use super::memory::{Applied, Incident};
use crate::command::Command;
use crate::events::{EVIDENCE_MAX, Evidence, What};
use crate::objective::Indicator;
use crate::observation::Duty;
use crate::order::{OrderKind, OrderStatus, Severity, WorkOrder, words};
use crate::part::{PartId, PartKind};
use crate::quarantine::may_stop_placing;
use crate::table::{Act, Event, Row, State};

/// How much is asked of a part that works badly, in percent of the usual. Not nothing, or it could never show that it is well.
const REWEIGHT_PERCENT: u8 = 25;

impl Reflex {
    /// Lets a part go from one state to another.
    pub(super) fn apply(&mut self, part: &PartId, row: &Row, event: Event, reason: String) {
        let from = self.memory.state(part);
        let mut incident = self.memory.incidents.remove(part).unwrap_or_else(|| self.new_incident(part));
        let evidence = self.evidence(part);
        if !evidence.is_empty() {
            incident.evidence = evidence;
        }
        incident.causes.extend(self.causes_of(part, event));
        incident.reason.clone_from(&reason);
        match event {
            Event::Evacuated => incident.is_evacuated = true,
            Event::Refused if incident.applied.quarantined => {
                incident.applied.quarantined = false;
                // Nobody was taken out, so that others of the rack may be; this one not at once again.
                incident.refused_ms = Some(self.run_ms());
                if let Some((_, rack)) = self.node_and_rack(part) {
                    self.memory.ledger.take_back(&rack, incident.since_ms);
                }
            }
            // Whoever replaced it put it into service; it is measured all the same.
            Event::Back if self.duty(part) == Some(Duty::Full) => incident.is_another(),
            Event::Replaced => incident.is_another(),
            Event::Overruled => {
                incident.applied.quarantined = false;
                let lasts_ms = self.slo.quarantine.overruled_s.saturating_mul(1_000);
                self.memory.note_overruled(part, self.memory.clock.run_ms(), lasts_ms);
            }
            _ => {}
        }
        if from != row.to {
            (incident.state, incident.since_ms) = (row.to, self.run_ms());
        }
        let evidence = incident.evidence.clone();
        // Kept while acts are carried out, so that what they look up is as it will be.
        self.memory.incidents.insert(part.clone(), incident);
        self.record(Some(part), What::Moved { from, event, to: row.to }, reason, evidence);
        for act in row.acts {
            self.carry_out(part, *act, event);
        }
        if matches!(event, Event::GatePassed | Event::GateFailed | Event::Overruled)
            && let Some(watch) = self.watches.get_mut(part)
        {
            // Whatever it shows next counts from now on.
            watch.streaks.clear();
            watch.pending.clear();
        }
        if row.to == State::Healthy {
            self.memory.incidents.remove(part);
            if !matches!(from, State::Suspect | State::Shadowed) {
                self.memory.note_end(part, self.memory.clock.run_ms());
            }
        } else if self.memory.incidents.len() >= super::INCIDENTS_MAX {
            self.tell_full();
        }
    }

    fn new_incident(&mut self, part: &PartId) -> Incident {
        self.memory.incident_last += 1;
        Incident {
            number: self.memory.incident_last,
            state: State::Healthy,
            opened: self.now,
            since_ms: self.run_ms(),
            reason: String::new(),
            evidence: Vec::new(),
            location: self.plan.places.get(part).cloned().unwrap_or_default(),
            causes: Default::default(),
            applied: Applied::default(),
            has_order: false,
            has_escalation: false,
            is_evacuated: false,
            is_duty_seen: false,
            is_stop_held: false,
            gate_run: 0,
            refused_ms: None,
        }
    }

    /// What has to be good before the part is sound again.
    fn causes_of(&self, part: &PartId, event: Event) -> Vec<Indicator> {
        let raised = self.watches.get(part).into_iter().flat_map(|watch| watch.raised());
        let mut causes: Vec<Indicator> = raised.map(|(indicator, _)| indicator).collect();
        match (part.kind, event) {
            (PartKind::Rack | PartKind::Switch, _) => causes.push(Indicator::Together),
            (PartKind::Port, Event::Lost) => causes.push(Indicator::Link),
            _ => {}
        }
        causes
    }

    fn carry_out(&mut self, part: &PartId, act: Act, event: Event) {
        let Some(incident) = self.memory.incidents.get(part) else { return };
        let (applied, reason) = (incident.applied, incident.reason.clone());
        let id = part.clone();
        match act {
            Act::Reweight => self.reweight(part, REWEIGHT_PERCENT),
            Act::Avoid => self.reweight(part, 0),
            Act::StopPlacing if applied.quarantined => {}
            Act::StopPlacing => self.stop_placing(part, event),
            Act::Restore => {
                self.reweight(part, 100);
                if applied.placing_stopped {
                    self.push(Command::ResumePlacing { part: id.clone() });
                }
                if applied.cordoned {
                    self.push(Command::Uncordon { part: id });
                }
                let restored = Applied { quarantined: applied.quarantined, ..Applied::default() };
                self.change(part, |incident| incident.applied = restored);
            }
            Act::Quarantine => {
                if let Some((_, rack)) = self.node_and_rack(part) {
                    self.memory.ledger.grant(self.memory.clock.run_ms(), &rack);
                }
                self.change(part, |incident| {
                    incident.applied.quarantined = true;
                    incident.is_duty_seen = false;
                });
                self.push(Command::Quarantine { part: id, reason });
            }
            Act::Evacuate => self.push(Command::Evacuate { part: id }),
            Act::Cordon if !applied.cordoned => {
                let command = Command::Cordon { part: id, reason };
                // What may not be done is not undone.
                let may = self.may(&command);
                self.change(part, |incident| incident.applied.cordoned = may);
                self.push(command);
            }
            Act::Cordon => {}
            Act::RunGate => {
                self.memory.gate_last += 1;
                let run = self.memory.gate_last;
                self.change(part, |incident| incident.gate_run = run);
                self.push(Command::RunGate { part: id, run });
            }
            // What a person took out, a person puts back.
            Act::Rejoin if !applied.quarantined => {}
            Act::Rejoin => {
                self.change(part, |incident| incident.applied.quarantined = false);
                self.push(Command::Rejoin { part: id });
            }
            Act::OpenOrder | Act::UpdateOrder | Act::CloseOrder | Act::Escalate => self.tell(part, act),
        }
    }

    fn change(&mut self, part: &PartId, change: impl FnOnce(&mut Incident)) {
        if let Some(incident) = self.memory.incidents.get_mut(part) {
            change(incident);
        }
    }

    fn reweight(&mut self, part: &PartId, percent: u8) {
        let is_new = self.memory.incidents.get(part).is_some_and(|one| one.applied.percent != percent);
        if is_new {
            self.change(part, |incident| incident.applied.percent = percent);
            self.push(Command::Reweight { part: part.clone(), percent });
        }
    }

    /// Stops placing, unless so many do not take chunks that the rest would be too few. One that is gone takes none anyway.
    fn stop_placing(&mut self, part: &PartId, event: Event) {
        if self.memory.incidents.get(part).is_none_or(|incident| incident.applied.placing_stopped) {
            return;
        }
        let may = event == Event::Lost
            || self.node_and_rack(part).is_some_and(|(node, rack)| {
                may_stop_placing(&self.ask(part, &node, &rack), self.stopped(&rack, &node))
            });
        if may {
            self.change(part, |incident| incident.applied.placing_stopped = true);
            return self.push(Command::StopPlacing { part: part.clone() });
        }
        self.change(part, |incident| incident.is_stop_held = true);
        let reason = "new chunks go on being put there, because too few others would be left".to_owned();
        self.record(Some(part), What::HeldBack, reason, Vec::new());
    }

    pub(super) fn tell(&mut self, part: &PartId, act: Act) {
        let Some(incident) = self.memory.incidents.get(part) else { return };
        let (has_order, has_escalation) = (incident.has_order, incident.has_escalation);
        match act {
            Act::OpenOrder if !has_order => {
                self.change(part, |incident| incident.has_order = true);
                let order = self.order(part, OrderKind::Repair, OrderStatus::Opened);
                self.push(Command::OpenWorkOrder(order));
            }
            Act::UpdateOrder if has_order => {
                let order = self.order(part, OrderKind::Repair, OrderStatus::Updated);
                self.push(Command::UpdateWorkOrder(order));
            }
            Act::Escalate if !has_escalation => {
                self.change(part, |incident| incident.has_escalation = true);
                let order = self.order(part, OrderKind::Escalation, OrderStatus::Opened);
                self.push(Command::Escalate(order));
            }
            Act::CloseOrder => {
                for (kind, is_open) in
                    [(OrderKind::Repair, has_order), (OrderKind::Escalation, has_escalation)]
                {
                    if is_open {
                        let order = self.order(part, kind, OrderStatus::Closed);
                        self.push(Command::CloseWorkOrder(order));
                    }
                }
                self.change(part, |one| (one.has_order, one.has_escalation) = (false, false));
            }
            _ => {}
        }
    }

    fn order(&self, part: &PartId, kind: OrderKind, status: OrderStatus) -> WorkOrder {
        let incident = &self.memory.incidents[part];
        let cluster = &self.plan.cluster;
        let place = &incident.location;
        let node = if place.node_name.is_empty() { &place.node } else { &place.node_name };
        let what = match part.kind {
            PartKind::Drive | PartKind::Port => {
                format!("{} {} of node {node}", part.kind.word(), place.place)
            }
            PartKind::Node => format!("node {node}"),
            PartKind::Switch | PartKind::Rack => format!("{} {}", part.kind.word(), part.name),
        };
        let found = incident.evidence.first().map_or_else(|| incident.reason.clone(), words);
        let task = match (kind, part.kind) {
            (OrderKind::Escalation, PartKind::Drive | PartKind::Node) => {
                "Decide: take it out by hand (`stoker node quarantine`, `stoker drive remove`), or leave it."
            }
            (OrderKind::Escalation, _) => {
                "Look at what these nodes have in common; nobody below it is taken out."
            }
            (_, PartKind::Drive) => "Replace the drive, once an update says that it may be pulled.",
            (_, PartKind::Node) => "Repair the node, once an update says that it may be pulled.",
            (_, PartKind::Port) => "Check cable, transceiver and port.",
            (_, PartKind::Switch) => "Check the switch and what it hangs on.",
            (_, PartKind::Rack) => "Check power and cooling.",
        };
        let severity = match (kind, part.kind) {
            (_, PartKind::Rack | PartKind::Switch) => Severity::Critical,
            (OrderKind::Repair, PartKind::Port) => Severity::Warning,
            _ => Severity::Error,
        };
        WorkOrder {
            key: WorkOrder::key(kind, cluster, &part.to_string(), incident.number, incident.opened),
            kind,
            status,
            severity,
            cluster: cluster.clone(),
            incident: incident.number,
            part: Some(part.clone()),
            location: place.clone(),
            title: format!("{what}: {found}"),
            task: task.to_owned(),
            reason: incident.reason.clone(),
            opened: incident.opened,
            at: self.now,
            evidence: incident.evidence.clone(),
        }
    }

    /// What is known against a part now.
    fn evidence(&self, part: &PartId) -> Vec<Evidence> {
        let (clock, run_ms) = (&self.memory.clock, self.run_ms());
        let Some(watch) = self.watches.get(part) else { return Vec::new() };
        let mut all: Vec<Evidence> = Vec::new();
        let measured = watch.streaks.iter().filter(|(_, streak)| streak.trouble() > 0);
        for (indicator, streak) in measured {
            let finding = streak.finding();
            all.push(Evidence {
                what: indicator.word().to_owned(),
                part: part.to_string(),
                found: finding.found.clone(),
                limit: finding.limit.clone(),
                since: clock.moment(streak.since_ms()),
                periods: streak.trouble(),
            });
        }
        let presence = |of: &PartId, since_ms: u64| Evidence {
            what: "presence".to_owned(),
            part: of.to_string(),
            found: "gone".to_owned(),
            since: clock.moment(since_ms),
            ..Evidence::default()
        };
        all.extend(watch.gone_since(run_ms, &self.rows).map(|since_ms| presence(part, since_ms)));
        for below in self.causes.get(part).into_iter().flat_map(|(_, parts)| parts) {
            let Some(watch) = self.watches.get(below) else { continue };
            if let Some(since_ms) = watch.gone_since(run_ms, &self.rows) {
                all.push(presence(below, since_ms));
            } else if let Some((indicator, streak)) = watch.raised().next() {
                all.push(Evidence {
                    what: indicator.word().to_owned(),
                    part: below.to_string(),
                    found: streak.finding().found.clone(),
                    limit: streak.finding().limit.clone(),
                    since: clock.moment(streak.since_ms()),
                    periods: streak.trouble(),
                });
            }
        }
        all.truncate(EVIDENCE_MAX);
        all
    }
}
