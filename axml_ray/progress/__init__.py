"""What people see while they wait: phases, heartbeats, live bars."""
