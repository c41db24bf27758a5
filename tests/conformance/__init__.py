"""What the contract says from outside: each behaviour once, over every transport it applies to."""
