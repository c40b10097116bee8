"""Model + budget -> Plan: one trace, a search over levers on it, and the winner traced for real."""
