"""What every served call passes: error mapping, metrics and logs, identity, fence, de-duplication, lease."""
